"""The shape of what a benchmark prints."""

import json

import pytest

from asyncrl.bench.report import Figure, Report
from asyncrl.bench.rounds import Pair, interleaved

REPORT = Report("rpc", {"latency": Figure.of(150.0, "us", 100.0), "calls_per_second": Figure.of(5000.0, "calls/s", 4000.0)})


def test_a_report_is_one_json_object_of_figures_with_value_unit_reference_and_ratio() -> None:
    assert "\n" not in REPORT.json()
    assert json.loads(REPORT.json()) == {
        "bench": "rpc",
        "figures": {
            "latency": {"value": 150.0, "unit": "us", "reference": 100.0, "ratio": 1.5},
            "calls_per_second": {"value": 5000.0, "unit": "calls/s", "reference": 4000.0, "ratio": 1.25},
        },
    }


def test_the_table_has_a_head_and_a_line_for_each_figure() -> None:
    assert [line.split() for line in REPORT.table().splitlines()] == [
        ["rpc", "ours", "reference", "unit", "ratio"],
        ["latency", "150", "100", "us", "1.50"],
        ["calls_per_second", "5000", "4000", "calls/s", "1.25"],
    ]


@pytest.mark.parametrize("reference", [0.0, -1.0, float("nan")])
def test_a_reference_that_measured_nothing_gives_no_ratio(reference: float) -> None:
    with pytest.raises(ValueError, match="a reference is above 0"):
        Figure.of(1.0, "us", reference)


async def test_rounds_alternate_who_is_first_drop_the_warm_up_and_take_medians() -> None:
    order: list[str] = []

    def source(who: str, values: list[float]) -> Pair:
        left = {"ours": list(values), "reference": [2 * value for value in values]}

        async def sample(side: str) -> float:
            order.append(f"{who} {side}")
            return left[side].pop(0)

        return Pair("us", lambda: sample("ours"), lambda: sample("reference"))

    said: list[str] = []
    pairs = {"a": source("a", [1e9, 1.0, 7.0, 2.0]), "b": source("b", [1e9, 5.0, 4.0, 3.0])}
    report = await interleaved("some", pairs, 3, said.append)
    assert report.figures == {"a": Figure(2.0, "us", 4.0, 0.5), "b": Figure(4.0, "us", 8.0, 0.5)}
    assert order[:8] == ["a reference", "a ours", "b reference", "b ours", "a ours", "a reference", "b ours", "b reference"]
    assert said == ["some: warm-up", "some: round 1 of 3", "some: round 2 of 3", "some: round 3 of 3"]
