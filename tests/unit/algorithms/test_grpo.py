"""GRPO: the number of one answer against those of its prompt."""

import random
import statistics

import pytest
import torch
from hypothesis import given, settings, strategies as st

from asyncrl.algorithms.advantages import AdvantageOptions, OutcomeRows
from asyncrl.algorithms.advantages.grpo import GRPO

PLAIN = AdvantageOptions()


def rows(scores: list[float], groups: list[int], dtype: torch.dtype = torch.float32) -> OutcomeRows:
    return OutcomeRows(torch.tensor(scores, dtype=dtype), torch.tensor(groups), torch.ones(len(scores), dtype=torch.int64))


def grpo(scores: list[float], groups: list[int], options: AdvantageOptions = PLAIN, dtype: torch.dtype = torch.float32) -> list[float]:
    return GRPO(rows(scores, groups, dtype), options).tolist()


def loop(scores: list[float], groups: list[int]) -> list[float]:
    """The definition, row by row."""
    answer = []
    for score, group in zip(scores, groups, strict=True):
        peers = [other for other, label in zip(scores, groups, strict=True) if label == group]
        mean, deviation = (statistics.fmean(peers), statistics.stdev(peers)) if len(peers) > 1 else (0.0, 1.0)
        answer.append((score - mean) / (deviation + 1e-6))
    return answer


def test_the_documented_example() -> None:
    advantages = grpo([1.0, 0, 0, 0, 1, 1], [7, 7, 7, -2, -2, -2])
    assert advantages == pytest.approx([1.1547, -0.57735, -0.57735, -1.1547, 0.57735, 0.57735], abs=2e-5)


def test_without_the_deviation_only_the_mean_is_taken_off() -> None:
    assert grpo([1.0, 0.0, 5.0, 10.0], [0, 0, 1, 1], AdvantageOptions(normalise_by_std=False)) == [0.5, -0.5, -2.5, 2.5]


@pytest.mark.parametrize(
    ("scores", "expected"),
    [
        ([1000.0, 1000.0, 1000.0, 1000.001], [-0.499, -0.499, -0.499, 1.497]),
        ([0.5, 0.5001, 0.5, 0.5001], [-0.851, 0.851, -0.851, 0.851]),
    ],
)
def test_a_small_spread_in_float32_is_kept(scores: list[float], expected: list[float]) -> None:
    assert grpo(scores, [0] * 4) == pytest.approx(expected, abs=2e-3)


def test_equal_scores_but_for_rounding_have_no_spread() -> None:
    almost = [0.1 + 0.2, 0.3]
    assert almost[0] != almost[1]
    assert grpo(almost, [0, 0], dtype=torch.float64) == [0.0, 0.0]


def test_a_group_of_one_keeps_its_score() -> None:
    assert grpo([2.0], [3], dtype=torch.float64) == pytest.approx([2 / (1 + 1e-6)])


@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 4), st.integers(-50, 50)), min_size=1, max_size=30), st.randoms(use_true_random=False))
def test_it_equals_the_loop_in_any_row_order(drawn: list[tuple[int, int]], shuffle: random.Random) -> None:
    shuffle.shuffle(drawn)
    groups, scores = [group for group, _ in drawn], [score / 10 for _, score in drawn]
    ours = GRPO(rows(scores, groups), PLAIN)
    assert ours.dtype == torch.float32
    assert ours.tolist() == pytest.approx(loop(scores, groups), abs=2e-4, rel=1e-5)
