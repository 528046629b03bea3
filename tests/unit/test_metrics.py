"""Metric values that reduce themselves."""

import itertools
import math
import statistics

import msgspec
import pytest

from asyncrl.metrics import (
    Correlation,
    Deviation,
    EffectiveSize,
    ExplainedVariance,
    Last,
    Max,
    Mean,
    Metric,
    Metrics,
    Min,
    Sum,
    merge,
    scalars,
    spread,
)


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


def test_an_extreme_of_nothing_is_not_a_number_until_something_joins() -> None:
    assert math.isnan(Max(-math.inf).value())
    assert math.isnan(Min(math.inf).value())
    assert (Max(-math.inf).join(Max(2.0)).value(), Min(math.inf).join(Min(2.0)).value()) == (2.0, 2.0)


def test_explained_variance_joins_and_needs_two_values() -> None:
    """Targets 1, 3, 5, 7 less predictions leave 0, 0, 2, 2: variances 20/3 and 4/3."""
    first = ExplainedVariance(Deviation(2.0, 2.0, 2.0, 1.0), Deviation(2.0, 0.0, 0.0, 1.0))
    second = ExplainedVariance(Deviation(2.0, 6.0, 2.0, 1.0), Deviation(2.0, 2.0, 0.0, 1.0))
    assert first.join(second).value() == pytest.approx(1 - (4 / 3) / (20 / 3), abs=1e-5)
    assert math.isnan(ExplainedVariance(Deviation(1.0, 2.0, 0.0, 1.0), Deviation(1.0, 0.0, 0.0, 1.0)).value())
    metrics: Metrics = {"a": first}
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(metrics), type=dict[str, Metric]) == metrics


def test_deviations_sizes_and_correlations_of_parts_join_to_those_of_the_whole() -> None:
    left, right = [1e8 + 1.0, 1e8 + 2.0, 1e8 + 4.0, 1e8 + 9.0], [3.0, 1.0, 2.0, -1.0]

    def part(places: list[int]) -> Metrics:
        xs, ys = ([values[place] for place in places] for values in (left, right))
        x, y = (sum(values) / len(places) for values in (xs, ys))
        squares = [sum((value - mean) ** 2 for value in values) for values, mean in ((xs, x), (ys, y))]
        products = sum((a - x) * (b - y) for a, b in zip(xs, ys, strict=True))
        return {
            "population": Deviation(len(places), x, squares[0]),
            "sample": Deviation(len(places), x, squares[0], 1.0),
            "size": EffectiveSize(sum(ys), sum(value * value for value in ys), len(places)),
            "correlation": Correlation(len(places), (x, y), (squares[0], squares[1]), products),
        }

    expected = {
        "population": statistics.pstdev(left),
        "sample": statistics.stdev(left),
        "size": 25 / (4 * 15),
        "correlation": statistics.correlation(left, right),
    }
    for cut in ([[0, 1, 2, 3]], [[0], [1, 2, 3]], [[3, 1], [0], [2]]):
        assert scalars(merge(map(part, cut))) == pytest.approx(expected)


def test_statistics_of_too_little_are_not_numbers() -> None:
    assert math.isnan(Deviation(1.0, 2.0, 0.0, 1.0).value())
    assert math.isnan(EffectiveSize(0.0, 0.0, 0.0).value())
    assert EffectiveSize(0.0, 0.0, 3.0).value() == 0.0
    assert math.isnan(Correlation(3.0, (1.0, 1.0), (0.0, 2.0), 0.0).value())


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
