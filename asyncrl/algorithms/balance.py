"""Cutting rows: mini-batches over whole prompt groups first, then equal work for every data-parallel rank.

Mini-batches depend on issue order and seed alone, never on the number of ranks; balancing happens inside one of them.
"""

import heapq
import math
import random
from collections.abc import Hashable, Sequence
from dataclasses import dataclass


def row_workload(length: int) -> int:
    """The cost of a row of ``length`` tokens, ``24576 L + L^2``: verl's calibration on a 7B model."""
    return 24576 * length + length * length


def group_rows(uids: Sequence[Hashable]) -> list[list[int]]:
    """Row numbers by prompt group, groups in the order in which they first occur.

    >>> group_rows(["a", "b", "a"])
    [[0, 2], [1]]
    """
    rows: dict[Hashable, list[int]] = {}
    for row, uid in enumerate(uids):
        rows.setdefault(uid, []).append(row)
    return list(rows.values())


def mini_batches(groups: int, size: int, *, permutation: tuple[int, int] | None = None) -> list[list[int]]:
    """Cut prompt groups 0..groups-1, numbered in issue order, into lists of ``size``; the last one may be shorter.

    Consecutive ones, or with a ``permutation`` (two seeds, such as a seed and a step) in an order that depends on these
    two numbers alone. Raises ValueError for a size below 1.

    >>> mini_batches(5, 2)
    [[0, 1], [2, 3], [4]]
    """
    if size < 1:
        raise ValueError(f"a mini-batch needs at least one group, got size {size}")
    order = list(range(groups))
    if permutation is not None:
        random.Random(f"mini-batches {permutation[0]} {permutation[1]}").shuffle(order)
    return [order[start : start + size] for start in range(0, groups, size)]


def balance_rows(lengths: Sequence[int], parts: int) -> list[list[int]]:
    """Row numbers for each of ``parts`` ranks: counts differ by at most one, workloads as little as may be.

    Rows in a part are in ascending order. Where ``parts`` does not divide the rows, some parts have one row less, or none.
    """
    missing = -len(lengths) % parts
    # Rows of no work fill up to a multiple. Being the smallest they meet in one start state, hence in parts of their own.
    workloads = [-1] * missing + [row_workload(length) for length in lengths]
    filled = karmarkar_karp(workloads, parts, equal_size=True) if workloads else [[] for _ in range(parts)]
    return [[row - missing for row in part if row >= missing] for part in filled]


def karmarkar_karp(workloads: Sequence[float], parts: int, *, equal_size: bool) -> list[list[int]]:
    """Largest differencing, https://en.wikipedia.org/wiki/Largest_differencing_method: item numbers of each part, ascending.

    ``equal_size`` gives every part as many items as any other. Raises ValueError when there are fewer items than parts, or
    when equal sizes are asked of a number that ``parts`` does not divide.
    """
    if parts < 1 or len(workloads) < parts:
        raise ValueError(f"cannot cut {len(workloads)} items into {parts} parts that are not empty")
    if equal_size and len(workloads) % parts:
        raise ValueError(f"cannot cut {len(workloads)} items into {parts} parts of equal size")
    items = sorted((workload, item) for item, workload in enumerate(workloads))
    width = parts if equal_size else 1
    states = [_State.of(items[start : start + width], parts) for start in range(0, len(items), width)]
    heapq.heapify(states)
    while len(states) > 1:
        widest = heapq.heappop(states)
        heapq.heapreplace(states, widest.merged(states[0]))
    return [sorted(item for item, _ in subset[2]) for subset in states[0].subsets]


_Subset = tuple[float, int, tuple[tuple[int, float], ...]]
"""Workload, number of items, (item, workload) pairs; compared in this order, so that ties are broken by number."""


@dataclass(frozen=True, slots=True)
class _State:
    """A partial solution: one subset for each part, heaviest first. A heap pops the one with the largest spread."""

    subsets: list[_Subset]

    @classmethod
    def of(cls, items: Sequence[tuple[float, int]], parts: int) -> "_State":
        """One item a subset; the other subsets are empty."""
        subsets: list[_Subset] = [(workload, 1, ((item, workload),)) for workload, item in items]
        subsets += [(0, 0, ())] * (parts - len(items))
        return cls(sorted(subsets, reverse=True))

    def merged(self, other: "_State") -> "_State":
        """The heaviest subset of one joined to the lightest of the other, and so on."""
        pairs = zip(self.subsets, reversed(other.subsets), strict=True)
        return _State(sorted(((a[0] + b[0], a[1] + b[1], a[2] + b[2]) for a, b in pairs), reverse=True))

    def spread(self) -> float:
        return self.subsets[0][0] - self.subsets[-1][0]

    def __lt__(self, other: "_State") -> bool:
        if self.spread() != other.spread():
            return self.spread() > other.spread()
        return self.subsets[0] > other.subsets[0]


def balance_groups(lengths: Sequence[int], uids: Sequence[Hashable], parts: int) -> list[list[int]]:
    """As ``balance_rows``, but a prompt group stays whole: every part gets equally many groups.

    Raises ValueError when ``parts`` does not divide the number of groups.
    """
    groups = group_rows(uids)
    workloads = [sum(row_workload(lengths[row]) for row in rows) for rows in groups]
    cut = karmarkar_karp(workloads, parts, equal_size=True)
    return [sorted(row for group in part for row in groups[group]) for part in cut]


def micro_batches(lengths: Sequence[int], max_tokens: int, *, minimum: int = 1, multiple: int = 1, group_size: int = 1) -> list[list[int]]:
    """Row numbers of each micro-batch of a rank: at most ``max_tokens`` tokens in one, the work spread evenly.

    As few as fit, but no fewer than ``minimum``, which is how ranks agree on the largest count that one of them needs, and a
    ``multiple`` of some number. ``group_size`` rows that follow one another stay together. Rows in a part ascend, and
    ``places`` puts what was computed by micro-batch back into row order. Nothing for no row. Raises ValueError when one
    group is over the budget, and when there are fewer groups than micro-batches asked for.

    >>> micro_batches([5, 4, 3, 4], 8)
    [[0, 2], [1, 3]]
    """
    if max_tokens < 1 or minimum < 1 or multiple < 1 or group_size < 1 or len(lengths) % group_size:
        raise ValueError(f"sizes must be at least 1 and {len(lengths)} rows a multiple of group_size, got {group_size}")
    groups = [list(range(first, first + group_size)) for first in range(0, len(lengths), group_size)]
    tokens = [sum(lengths[row] for row in rows) for rows in groups]
    if max(tokens, default=0) > max_tokens:
        raise ValueError(f"a micro-batch of {max_tokens} tokens does not hold {group_size} row(s) of {max(tokens)} tokens")
    work = [sum(row_workload(lengths[row]) for row in rows) for rows in groups]
    least = math.ceil(max(minimum, math.ceil(sum(tokens) / max_tokens)) / multiple) * multiple
    for count in range(least, len(groups) + 1, multiple):
        # Even work fits most often; even lengths fit in some cases where it does not.
        for weights in (work, tokens):
            parts = karmarkar_karp(weights, count, equal_size=False)
            if all(sum(tokens[group] for group in part) <= max_tokens for part in parts):
                return [[row for group in part for row in groups[group]] for part in sorted(parts)]
    if not lengths:
        return []
    raise ValueError(f"{len(groups)} group(s) of {group_size} row(s) cannot make {least} micro-batches, a multiple of {multiple}")


def places(parts: Sequence[Sequence[int]]) -> list[int]:
    """Where each row stands when the parts are put one after the other: the order in which to take them back.

    >>> places([[1, 2], [0]])
    [2, 0, 1]
    """
    flat = [row for part in parts for row in part]
    return sorted(range(len(flat)), key=flat.__getitem__)


def batch_multiple(data_parallel: int, actor_rows: int | None, critic_rows: int | None = None) -> int:
    """The number that verl pads a batch to a multiple of: ranks, and the rows of a mini-batch of each role that updates."""
    return math.lcm(data_parallel, *(rows for rows in (actor_rows, critic_rows) if rows is not None))


def balance_metrics(lengths: Sequence[int], parts: Sequence[Sequence[int]], prefix: str = "global_seqlen") -> dict[str, float]:
    """Tokens per part, in row order (``min``, ``max``) and as balanced, by verl's names."""
    size = max(1, len(lengths) // len(parts))
    before = [sum(lengths[start : start + size]) for start in range(0, len(lengths), size)]
    after = [sum(lengths[row] for row in part) for part in parts]
    values = {
        "min": min(before),
        "max": max(before),
        "minmax_diff": max(before) - min(before),
        "balanced_min": min(after),
        "balanced_max": max(after),
        "mean": sum(lengths) / len(parts),
    }
    return {f"{prefix}/{name}": float(value) for name, value in values.items()}
