"""Metric values that reduce themselves."""

import itertools
import math

import msgspec
import pytest

from asyncrl.metrics import Last, Max, Mean, Metric, Metrics, Min, Sum, merge, scalars, spread


def test_each_kind_joins_by_its_own_rule() -> None:
    parts: list[Metrics] = [
        {"mean": Mean(1.0, 1.0), "sum": Sum(1.0), "max": Max(1.0), "min": Min(1.0), "last": Last(1.0)},
        {"mean": Mean(9.0, 3.0), "sum": Sum(2.0), "max": Max(0.0), "min": Min(0.0), "last": Last(0.0)},
    ]
    assert scalars(merge(parts)) == {"mean": 2.5, "sum": 3.0, "max": 1.0, "min": 0.0, "last": 0.0}


def test_a_mean_weighs_tokens_whatever_the_order_and_cut() -> None:
    tokens = [Mean(kl * count, count) for kl, count in ((1.0, 1), (3.0, 3), (0.5, 0), (2.0, 4))]
    expected = (1 + 9 + 8) / 8
    for order in itertools.permutations(tokens):
        left = merge([{"kl": order[0]}, {"kl": order[1]}])
        right = merge([{"kl": order[2]}, {"kl": order[3]}])
        assert scalars(merge([left, right])) == {"kl": pytest.approx(expected)}


def test_a_mean_of_nothing_is_not_a_number() -> None:
    assert math.isnan(Mean(0.0, 0.0).value())
    assert Mean(0.0, 0.0).join(Mean(3.0, 2.0)).value() == 1.5


def test_names_of_some_parts_only_are_kept() -> None:
    assert scalars(merge([{"a": Sum(1.0)}, {}, {"b": Max(2.0)}])) == {"a": 1.0, "b": 2.0}
    assert merge([]) == {}


def test_two_kinds_under_one_name_are_refused_by_name() -> None:
    with pytest.raises(TypeError, match=r"'a' is Sum in one part and Mean in another"):
        merge([{"a": Sum(1.0)}, {"a": Mean(1.0, 1.0)}])


def test_parts_are_not_changed_by_a_merge() -> None:
    first: Metrics = {"a": Sum(1.0)}
    merge([first, {"a": Sum(2.0)}])
    assert first == {"a": Sum(1.0)}


def test_metrics_survive_the_wire() -> None:
    metrics: Metrics = {"a": Mean(1.0, 2.0), "b": Sum(1.0), "c": Max(2.0), "d": Min(3.0), "e": Last(4.0)}
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(metrics), type=dict[str, Metric]) == metrics


def test_spread_names_mean_max_and_min() -> None:
    assert spread("length", [1, 2, 6]) == {"length/mean": 3.0, "length/max": 6.0, "length/min": 1.0}
    assert spread("length", []) == {}
