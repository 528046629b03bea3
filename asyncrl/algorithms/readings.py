"""Metrics of masked tensors: computed on their device in float64, read from it in one transfer, exact when parts are joined.

``values`` and ``where`` have one shape, [N, R] for tokens or [N] for rows; what lies under a 0 of ``where`` does not count.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from asyncrl.algorithms.masked import masked, moments, ones
from asyncrl.metrics import Deviation, EffectiveSize, Max, Mean, Metric, Metrics, Min


@dataclass(frozen=True, slots=True)
class Reading:
    """A metric whose numbers, scalars, are still on the device."""

    kind: Callable[..., Metric]
    numbers: tuple[Tensor, ...]


def mean(values: Tensor, where: Tensor, count: Tensor | None = None) -> Reading:
    """The mean; of a bool tensor the fraction that is set. ``count``: the ones of ``where``, if they are known."""
    chosen = where.bool()
    count = ones(chosen) if count is None else count
    if values.dtype == torch.bool:
        return Reading(Mean, (ones(values & chosen), count))
    # Row by row first: a float64 sum of float32 tokens would copy them.
    rows = masked(values, chosen).flatten(1).sum(-1) if values.dim() > 1 else masked(values, chosen)
    return Reading(Mean, (rows.double().sum(), count))


def largest(values: Tensor, where: Tensor) -> Reading:
    """The maximum; minus infinity for nothing, which the join with another part overrules."""
    return Reading(Max, (_filled(values, where, -torch.inf).amax(),))


def smallest(values: Tensor, where: Tensor) -> Reading:
    """The minimum; infinity for nothing."""
    return Reading(Min, (_filled(values, where, torch.inf).amin(),))


def _filled(values: Tensor, where: Tensor, nothing: float) -> Tensor:
    """[M + 1]: never empty, as an extreme wants it."""
    return torch.nn.functional.pad(torch.where(where.bool(), values.double(), nothing).flatten(), (0, 1), value=nothing)


def deviation(values: Tensor, where: Tensor, *, sample: bool = False) -> Reading:
    """The standard deviation: of everything there is, or with ``sample`` divided by n - 1."""
    weight, average, squares = moments(values, where).unbind()
    return Reading(Deviation, (weight, average, squares, torch.full_like(weight, float(sample))))


def effective_size(weights: Tensor, where: Tensor) -> Reading:
    """Kish's effective sample size of the weights, as a part of their number."""
    used = masked(weights.double(), where)
    return Reading(EffectiveSize, (used.sum(), used.square().sum(), ones(where)))


@torch.no_grad()
def read(readings: Mapping[str, Reading]) -> Metrics:
    """The metrics of all readings, in one transfer from the device."""
    if not readings:
        return {}
    flat = torch.stack([number.double() for reading in readings.values() for number in reading.numbers]).tolist()
    metrics: Metrics = {}
    for name, reading in readings.items():
        own, flat = flat[: len(reading.numbers)], flat[len(reading.numbers) :]
        metrics[name] = reading.kind(*own)
    return metrics
