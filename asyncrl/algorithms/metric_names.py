"""How plain numbers of one name combine, over the local updates of a step or over ranks.

Metrics of this project know by themselves how they join (``asyncrl.metrics``). Numbers that come without, such as a user's
or a tracker's, combine by the words of their name.
"""

import math
import re
from collections.abc import Mapping, Sequence

SPREAD = "minmax_diff"
"""Ends the name of a maximum minus a minimum."""
LAST = ("global_step", "epoch", "lr")
SUMMED = ("sum", "total", "evicted", "discarded")
SUMMED_SECTIONS = ("timing_s", "timing_per_token_ms")


def words(name: str) -> list[str]:
    """The words of a name.

    >>> words("perf/max_memory@2")
    ['perf', 'max', 'memory', '2']
    """
    return [word for word in re.split(r"[/_@]", name) if word]


def reduce_by_name(name: str, values: Sequence[float]) -> float:
    """The maximum of what is called a maximum (and of a ``minmax_diff``), the minimum of a minimum, else the mean."""
    if "max" in words(name) or name.endswith(SPREAD):
        return max(values)
    if "min" in words(name):
        return min(values)
    return math.fsum(values) / len(values)


def combine_updates(updates: Sequence[Mapping[str, float]], rows: Sequence[int]) -> dict[str, float]:
    """One set of numbers for the local updates of a step, of which each trained ``rows`` rows, padding apart.

    Step, epoch and learning rate are the last ones; timings, totals and counts of evicted samples are added; maxima and
    minima stay so, and a ``minmax_diff`` is their difference anew; the rest is averaged, each update by its rows. A name
    that only some updates have is combined over these.
    """
    combined: dict[str, float] = {}
    for name in dict.fromkeys(name for update in updates for name in update):
        present = [(update[name], weight) for update, weight in zip(updates, rows, strict=True) if name in update]
        combined[name] = _combined(name, [value for value, _ in present], [weight for _, weight in present])
    for name in [name for name in combined if name.endswith(SPREAD)]:
        ends = [combined.get(name.removesuffix(SPREAD) + end) for end in ("max", "min")]
        if ends[0] is not None and ends[1] is not None:
            combined[name] = ends[0] - ends[1]
    return combined


def _combined(name: str, values: Sequence[float], weights: Sequence[int]) -> float:
    said, last = words(name), name.rpartition("/")[2]
    if last in LAST:
        return values[-1]
    if name.partition("/")[0] in SUMMED_SECTIONS or any(word in SUMMED for word in said):
        return math.fsum(values)
    if "max" in said or "min" in said or name.endswith(SPREAD) or not sum(weights):
        return reduce_by_name(name, values)
    return math.fsum(value * weight for value, weight in zip(values, weights, strict=True)) / sum(weights)
