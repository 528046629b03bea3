"""Logarithmic buckets, against the numbers themselves."""

import pytest
from hypothesis import given, settings, strategies as st

from asyncrl.runtime.histogram import SIZE, Histogram, middle_of


def test_buckets_by_hand() -> None:
    found = Histogram()
    # 1 us begins the first bucket, 2 us the ninth; everything below and above goes to the ends.
    for seconds in (0.0, 1e-7, 1e-6, 1.12e-6, 1.13e-6, 1.99e-6, 2.01e-6, 1e7):
        found.record(seconds)
    assert found.buckets == [(0, 4), (1, 1), (7, 1), (8, 1), (SIZE - 1, 1)]
    assert found.count == 8
    assert middle_of(0) == pytest.approx(1.0625e-6)
    assert middle_of(8) == pytest.approx(2.125e-6)
    assert Histogram().quantile(0.5) == 0.0


@settings(max_examples=30)
@given(st.lists(st.floats(2e-6, 4000.0), min_size=1, max_size=60), st.floats(0.01, 1.0))
def test_quantiles_are_off_by_at_most_a_sixteenth(values: list[float], share: float) -> None:
    found = Histogram()
    for value in values:
        found.record(value)
    ordered = sorted(values)
    exact = next(value for number, value in enumerate(ordered, 1) if number >= share * len(values) - 1e-9)
    assert found.quantile(share) == pytest.approx(exact, rel=1 / 15.9)
    assert found.seconds == pytest.approx(sum(values))


@settings(max_examples=30)
@given(st.lists(st.floats(0.0, 1e5), max_size=30), st.lists(st.floats(0.0, 1e5), max_size=30))
def test_buckets_give_the_histogram_back_and_add_up(left: list[float], right: list[float]) -> None:
    one, two, both = Histogram(), Histogram(), Histogram()
    for histogram, values in ((one, left), (two, right), (both, left + right)):
        for value in values:
            histogram.record(value)
    assert Histogram([*one.buckets, *two.buckets]).buckets == both.buckets
