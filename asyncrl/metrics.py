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
    """The largest value seen. Minus infinity stands for nothing seen, whose value is NaN."""

    largest: float

    def join(self, other: "Max") -> "Max":
        return Max(max(self.largest, other.largest))

    def value(self) -> float:
        return self.largest if self.largest > -math.inf else math.nan


class Min(msgspec.Struct, frozen=True, tag="min", array_like=True):
    """The smallest value seen. Infinity stands for nothing seen, whose value is NaN."""

    smallest: float

    def join(self, other: "Min") -> "Min":
        return Min(min(self.smallest, other.smallest))

    def value(self) -> float:
        return self.smallest if self.smallest < math.inf else math.nan


class Last(msgspec.Struct, frozen=True, tag="last", array_like=True):
    """A value that is the same everywhere, or of which the last one counts."""

    last: float

    def join(self, other: "Last") -> "Last":
        return other

    def value(self) -> float:
        return self.last


class Deviation(msgspec.Struct, frozen=True, tag="deviation", array_like=True):
    """A standard deviation: of a sample where ``freedom`` is 1, of everything there is where it is 0. NaN for too few values.

    Joined by the rule of Chan, Golub and LeVeque (1979), which does not cancel as a sum of squares does.
    """

    weight: float
    mean: float
    squares: float
    """Sum of the squared distances from the mean."""
    freedom: float = 0.0

    def join(self, other: "Deviation") -> "Deviation":
        weight = self.weight + other.weight
        if not weight:
            return self
        apart = other.mean - self.mean
        squares = self.squares + other.squares + apart * apart * self.weight * other.weight / weight
        return Deviation(weight, self.mean + apart * other.weight / weight, squares, self.freedom)

    def value(self) -> float:
        return math.sqrt(self.squares / (self.weight - self.freedom)) if self.weight > self.freedom else math.nan


class EffectiveSize(msgspec.Struct, frozen=True, tag="effective_size", array_like=True):
    """Kish's effective sample size of weights, as a part of their number: (sum w)^2 / (n sum w^2). 0 when all are 0."""

    total: float
    squares: float
    count: float

    def join(self, other: "EffectiveSize") -> "EffectiveSize":
        return EffectiveSize(self.total + other.total, self.squares + other.squares, self.count + other.count)

    def value(self) -> float:
        if not self.count:
            return math.nan
        return self.total * self.total / (self.count * self.squares) if self.squares else 0.0


class Correlation(msgspec.Struct, frozen=True, tag="correlation", array_like=True):
    """Pearson's correlation of weighed pairs; joined as ``Deviation`` is. NaN where one side does not vary but for rounding."""

    weight: float
    means: tuple[float, float]
    squares: tuple[float, float]
    """Sums of the squared distances from the two means."""
    products: float
    """Sum of the products of the two distances."""

    def join(self, other: "Correlation") -> "Correlation":
        weight = self.weight + other.weight
        if not weight:
            return self
        share, crossed = other.weight / weight, self.weight * other.weight / weight
        apart = [theirs - ours for ours, theirs in zip(self.means, other.means, strict=True)]
        return Correlation(
            weight,
            (self.means[0] + apart[0] * share, self.means[1] + apart[1] * share),
            (
                self.squares[0] + other.squares[0] + apart[0] * apart[0] * crossed,
                self.squares[1] + other.squares[1] + apart[1] * apart[1] * crossed,
            ),
            self.products + other.products + apart[0] * apart[1] * crossed,
        )

    def value(self) -> float:
        floors = [1e-24 * self.weight * mean * mean for mean in self.means]
        if any(square <= floor for square, floor in zip(self.squares, floors, strict=True)):
            return math.nan
        return self.products / math.sqrt(self.squares[0] * self.squares[1])


class ExplainedVariance(msgspec.Struct, frozen=True, tag="explained_variance", array_like=True):
    """How much of a target's variance a prediction takes away: ``1 - var(target - prediction) / (var(target) + 1e-5)``.

    Sample variances; NaN for fewer than two values.
    """

    target: Deviation
    residual: Deviation

    def join(self, other: "ExplainedVariance") -> "ExplainedVariance":
        return ExplainedVariance(self.target.join(other.target), self.residual.join(other.residual))

    def value(self) -> float:
        return 1.0 - self.residual.value() ** 2 / (self.target.value() ** 2 + 1e-5)


Metric = Mean | Sum | Max | Min | Last | Deviation | EffectiveSize | Correlation | ExplainedVariance
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
