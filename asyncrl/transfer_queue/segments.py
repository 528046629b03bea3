"""Segments: the columns of past puts, at rest, with counts of what is still live in each."""

import math
from collections.abc import Sequence

from asyncrl.tensors.dtypes import STORAGE
from asyncrl.tensors.wire import Column

SMALL = 8192
"""Bytes below which a column is copied: a small frame may be a window on a larger receive buffer, and pin it."""


class Segment:
    """One column as it was put. A row refers to a place in it; without referring rows the memory is gone."""

    __slots__ = ("column", "live_bytes", "live_rows", "row_unit")

    def __init__(self, column: Column) -> None:
        self.column = adopt(column)
        self.live_rows = column.rows
        self.live_bytes = column.nbytes
        self.row_unit = math.prod(column.trailing) * STORAGE[column.dtype].itemsize

    def release(self, index: int) -> int:
        """Row ``index`` is referred to no longer. Returns the bytes it had."""
        offsets = self.column.offsets
        length = 1 if offsets is None else int(offsets[index + 1] - offsets[index])
        self.live_rows -= 1
        self.live_bytes -= length * self.row_unit
        return length * self.row_unit


Cell = tuple[Segment, int]
"""Where one field of one row lies: its segment and its row there."""


def adopt(column: Column) -> Column:
    """The column as storage, read-only: no reader in this process can change it.

    Large frames off a socket are taken over. Small ones are copied, and so is what came read-only, because then it
    is shared with a sender in this process, who may use the memory again.
    """
    values = column.values
    copy = column.nbytes < SMALL or not values.flags.writeable
    values = values.copy() if copy else values
    values.flags.writeable = False
    offsets = column.offsets
    if offsets is not None:
        offsets = offsets.copy() if copy or not offsets.flags.writeable else offsets.view()
        offsets.flags.writeable = False
    return Column(column.dtype, column.trailing, values, offsets, column.rows)


def gather(cells: Sequence[Cell]) -> Column:
    """The rows at one or more cells of one field, in order, packed.

    Neighbours in one segment are taken together; a whole segment in its own order is handed over without a copy.
    """
    runs = _runs(cells)
    if len(runs) == 1:
        segment, start, stop = runs[0]
        return segment.column if stop - start == segment.column.rows else segment.column.slice(start, stop)
    first = runs[0][0]
    if all(segment is first for segment, _, _ in runs):
        return first.column.take([index for _, index in cells])
    return Column.concat([segment.column.slice(start, stop) for segment, start, stop in runs])


def _runs(cells: Sequence[Cell]) -> list[tuple[Segment, int, int]]:
    """Maximal runs of neighbours: (segment, first, one past the last)."""
    runs: list[tuple[Segment, int, int]] = []
    current, start = cells[0]
    stop = start
    for segment, index in cells:
        if segment is not current or index != stop:
            runs.append((current, start, stop))
            current, start = segment, index
        stop = index + 1
    runs.append((current, start, stop))
    return runs
