"""Interleaved rounds: what else the machine does meets our figure and its reference alike."""

import gc
import statistics
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass

from asyncrl.bench.report import Figure, Report

Sample = Callable[[], Awaitable[float]]
"""One measurement, in the unit of its pair."""
Step = Callable[[], Awaitable[object]]
Progress = Callable[[str], None]
"""Told one line about how far a benchmark is."""

MICROSECONDS = 1e6
MEGA = 1e6


@dataclass(frozen=True, slots=True)
class Pair:
    """One figure: how we are measured, and how the reference is."""

    unit: str
    ours: Sample
    reference: Sample


async def interleaved(bench: str, pairs: Mapping[str, Pair], rounds: int, progress: Progress) -> Report:
    """Medians over ``rounds`` of every pair, after one round that does not count. Who of a pair is first alternates."""
    taken: dict[str, tuple[list[float], list[float]]] = {name: ([], []) for name in pairs}
    for number in range(rounds + 1):
        progress(f"{bench}: round {number} of {rounds}" if number else f"{bench}: warm-up")
        gc.collect()
        for name, pair in pairs.items():
            if number % 2:
                ours, reference = await pair.ours(), await pair.reference()
            else:
                reference, ours = await pair.reference(), await pair.ours()
            if number:
                taken[name][0].append(ours)
                taken[name][1].append(reference)
    figures = {
        name: Figure.of(statistics.median(taken[name][0]), pair.unit, statistics.median(taken[name][1])) for name, pair in pairs.items()
    }
    return Report(bench, figures)


async def median_microseconds(steps: int, step: Callable[[int], Awaitable[object]]) -> float:
    """Half of ``steps`` calls of ``step(index)``, one after another, took at most this long."""
    spent: list[float] = []
    for index in range(steps):
        start = time.perf_counter()
        await step(index)
        spent.append(time.perf_counter() - start)
    return statistics.median(spent) * MICROSECONDS


async def megabytes_per_second(size: int, step: Step) -> float:
    """``size`` bytes over the wall time of one ``step``, in MB/s (10^6 bytes)."""
    start = time.perf_counter()
    await step()
    return size / MEGA / (time.perf_counter() - start)
