"""What a reward function returned, as a score or as the reason why there is none."""

import decimal
from typing import Any

import msgspec
import numpy as np
import pytest
import torch

from asyncrl.rewards.reward import json_value, normalise


@pytest.mark.parametrize(
    ("returned", "score"),
    [
        (1, 1.0),
        (0, 0.0),
        (0.5, 0.5),
        (-3, -3.0),
        (True, 1.0),
        (False, 0.0),
        (np.float32(0.5), 0.5),
        (np.int64(2), 2.0),
        (np.bool_(False), 0.0),
        (np.array(0.25), 0.25),
        (torch.tensor(0.75), 0.75),
        (decimal.Decimal("0.5"), 0.5),
    ],
)
def test_every_kind_of_number_is_a_score_and_is_kept_as_acc(returned: Any, score: float) -> None:
    result = normalise(returned)
    assert (result.score, result.extra, result.error) == (score, {"acc": score}, "")
    assert type(result.score) is float


@pytest.mark.parametrize("zero", [0.0, 0, False, np.float32(0), np.int64(0)])
def test_a_score_of_zero_is_a_score(zero: Any) -> None:
    result = normalise({"score": zero, "reward": 1.0})
    assert (result.score, result.extra, result.error) == (0.0, {"reward": 1.0}, "")


def test_further_values_become_extra_and_plain_json() -> None:
    result = normalise(
        {"reward": 0.5, "acc": np.bool_(True), "parts": np.array([1, 2]), "why": ("a", None), "deep": {"n": np.float64(0.5)}}
    )
    assert result.score == 0.5
    assert result.extra == {"acc": True, "parts": [1, 2], "why": ["a", None], "deep": {"n": 0.5}}
    assert msgspec.json.encode(result.extra) == b'{"acc":true,"parts":[1,2],"why":["a",null],"deep":{"n":0.5}}'


def test_a_dict_of_a_score_alone_has_no_extra() -> None:
    assert normalise({"score": 1}).extra == {}


@pytest.mark.parametrize(
    ("returned", "said"),
    [
        (None, "returned None"),
        ("1.0", "returned '1.0'"),
        (b"1", "returned b'1'"),
        ([1.0], "returned [1.0]"),
        ((1.0, {}), "returned (1.0, {})"),
        (np.array([1.0]), "expected a number"),
        (np.array([1.0, 2.0]), "expected a number"),
        (torch.tensor([1.0, 2.0]), "expected a number"),
        (1j, "returned 1j"),
        (np.complex128(1), "expected a number"),
        (float("nan"), "returned nan, expected a finite number"),
        (float("inf"), "returned inf"),
        (np.float32("nan"), "returned nan"),
        (10**400, "expected a number"),
        (object, "expected a number"),
        ({}, "a dict without 'score': []"),
        ({"acc": 1.0}, "a dict without 'score': ['acc']"),
        ({"score": None}, "a dict whose 'score' is None"),
        ({"score": None, "reward": 1.0}, "a dict whose 'score' is None"),
        ({"score": float("nan")}, "a dict whose 'score' is nan"),
        ({"score": "1"}, "a dict whose 'score' is '1'"),
        ({"score": 1.0, "why": object()}, "a object, which JSON cannot hold"),
    ],
)
def test_what_is_no_number_is_an_error_and_never_a_score(returned: Any, said: str) -> None:
    result = normalise(returned)
    assert result.score is None
    assert said in result.error


def test_numpy_scalars_that_are_python_numbers_become_plain_ones() -> None:
    assert type(json_value(np.float64(0.5))) is float
    assert type(json_value(np.str_("a"))) is str
