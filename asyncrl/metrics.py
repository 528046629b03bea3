"""Metric values that know how to reduce themselves.

A worker returns ``dict[str, Metric]``; ``merge`` joins the dicts of micro-batches, ranks and updates into one, and
``scalars`` turns the result into plain floats. Because a mean carries its numerator and its weight, the number that is
logged does not depend on how a batch was cut.
"""

import math
from collections.abc import Iterable, Mapping

import msgspec


class Mean(msgspec.Struct, frozen=True, tag="mean", array_like=True):
    """A weighted mean: ``total / weight``. NaN when nothing was weighed."""

    total: float
    weight: float

    def join(self, other: "Mean") -> "Mean":
        return Mean(self.total + other.total, self.weight + other.weight)

    def value(self) -> float:
        return self.total / self.weight if self.weight else math.nan


class Sum(msgspec.Struct, frozen=True, tag="sum", array_like=True):
    """A count or an amount that adds up."""

    total: float

    def join(self, other: "Sum") -> "Sum":
        return Sum(self.total + other.total)

    def value(self) -> float:
        return self.total


class Max(msgspec.Struct, frozen=True, tag="max", array_like=True):
    """The largest value seen."""

    largest: float

    def join(self, other: "Max") -> "Max":
        return Max(max(self.largest, other.largest))

    def value(self) -> float:
        return self.largest


class Min(msgspec.Struct, frozen=True, tag="min", array_like=True):
    """The smallest value seen."""

    smallest: float

    def join(self, other: "Min") -> "Min":
        return Min(min(self.smallest, other.smallest))

    def value(self) -> float:
        return self.smallest


class Last(msgspec.Struct, frozen=True, tag="last", array_like=True):
    """A value that is the same everywhere, or of which the last one counts."""

    last: float

    def join(self, other: "Last") -> "Last":
        return other

    def value(self) -> float:
        return self.last


Metric = Mean | Sum | Max | Min | Last
Metrics = dict[str, Metric]


def merge(parts: Iterable[Mapping[str, Metric]]) -> Metrics:
    """Join the metrics of several parts, name by name.

    Raises TypeError when two parts give one name different kinds: a mean cannot be joined to a sum.
    """
    joined: Metrics = {}
    for part in parts:
        for name, metric in part.items():
            seen = joined.get(name)
            if seen is None:
                joined[name] = metric
            elif type(seen) is not type(metric):
                raise TypeError(f"metric {name!r} is {type(seen).__name__} in one part and {type(metric).__name__} in another")
            else:
                joined[name] = seen.join(metric)  # type: ignore[arg-type]
    return joined


def scalars(metrics: Mapping[str, Metric]) -> dict[str, float]:
    """The plain number of every metric, by name."""
    return {name: metric.value() for name, metric in metrics.items()}


def spread(name: str, values: Iterable[float]) -> dict[str, float]:
    """``name/mean``, ``name/max`` and ``name/min`` of some numbers, as verl names them; nothing for no numbers."""
    numbers = [float(value) for value in values]
    if not numbers:
        return {}
    return {f"{name}/mean": sum(numbers) / len(numbers), f"{name}/max": max(numbers), f"{name}/min": min(numbers)}
