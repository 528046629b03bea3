"""Segments: the columns of past puts, at rest, with counts of what is still live in each."""

import math
from collections.abc import Sequence

from asyncrl.tensors.dtypes import STORAGE
from asyncrl.tensors.wire import Allocate, Column
from asyncrl.transfer_queue.rows import Origin, Tag
from asyncrl.transfer_queue.tag_columns import TagBlock

WASTE = 65536
"""Dead bytes of a segment below which it is left alone until somebody waits for room."""
SMALL = 8192
"""Bytes below which a column is copied: a small frame may be a window on a larger receive buffer, and pin it."""


class Segment:
    """One column as it was put. A row refers to a place in it; without referring rows the memory is gone.

    ``origins`` are (origin, rows) in row order; ``file`` is the journal's file that holds it, 0 without a journal;
    ``owners`` are the rows that refer to its places, None where a row has gone; ``nbytes`` counts all of the column, dead rows included.
    """

    __slots__ = ("column", "file", "live_bytes", "live_rows", "name", "nbytes", "origins", "owners", "row_unit")

    def __init__(self, name: str, column: Column, origins: list[tuple[Origin, int]], file: int, owners: "list[Row | None]") -> None:
        self.name, self.origins, self.file, self.owners = name, origins, file, owners
        self.column = adopt(column)
        self.live_rows = rows = column.rows
        self.nbytes = self.live_bytes = size = column.nbytes
        self.row_unit = size // rows if rows and column.offsets is None else math.prod(column.trailing) * STORAGE[column.dtype].itemsize

    def release(self, index: int) -> int:
        """Row ``index`` is referred to no longer. Returns the bytes it had."""
        offsets = self.column.offsets
        length = 1 if offsets is None else int(offsets[index + 1] - offsets[index])
        self.owners[index] = None
        self.live_rows -= 1
        self.live_bytes -= length * self.row_unit
        return length * self.row_unit

    @property
    def dead_bytes(self) -> int:
        """What no row refers to, if that is more than half; else 0, for then it is left alone."""
        dead = self.nbytes - self.live_bytes
        return dead if dead > self.live_bytes else 0

    def origin(self, index: int) -> Origin:
        """Who wrote row ``index``."""
        for origin, rows in self.origins:
            if index < rows:
                return origin
            index -= rows
        raise IndexError(index)


NOWHERE = TagBlock(())
"""Where a row is until it is told."""

Cell = tuple[Segment, int]
"""Where one field of one row lies: its segment and its row there."""


class Row:
    """One row: where its tag and its fields lie. ``file`` is the journal's file that holds the oldest part of its tag."""

    __slots__ = ("block", "cells", "file", "place")

    def __init__(self, file: int) -> None:
        self.cells: dict[str, Cell] = {}
        self.file = file
        self.block = NOWHERE
        self.place = 0

    @property
    def tag(self) -> Tag:
        """Its tag now, as a dict of its own."""
        return self.block.tag(self.place)


def merged_origins(cells: Sequence[Cell]) -> list[tuple[Origin, int]]:
    """The origins of cells in order, neighbours of one origin together."""
    found: list[tuple[Origin, int]] = []
    for segment, index in cells:
        origin = segment.origin(index)
        if found and found[-1][0] == origin:
            found[-1] = (origin, found[-1][1] + 1)
        else:
            found.append((origin, 1))
    return found


def adopt(column: Column) -> Column:
    """The column as storage, read-only: no reader in this process can change it.

    Large frames off a socket are taken over, and bytes, which nobody can change. Other small ones are copied, and so is
    what came read-only, because then it is shared with a sender in this process, who may use the memory again.
    """
    data = column.data
    if isinstance(data, memoryview) and isinstance(data.obj, bytes) and len(data.obj) == data.nbytes:
        data = data.obj
    if isinstance(data, bytes) and column.offsets is None:
        return Column(column.dtype, column.trailing, data, None, column.rows)
    values = column.values
    copy = column.nbytes < SMALL or not values.flags.writeable
    values = values.copy() if copy else values
    values.flags.writeable = False
    offsets = column.offsets
    if offsets is not None:
        offsets = offsets.copy() if copy or not offsets.flags.writeable else offsets.view()
        offsets.flags.writeable = False
    return Column(column.dtype, column.trailing, values, offsets, column.rows)


def gather(cells: Sequence[Cell], allocate: Allocate | None = None) -> Column:
    """The rows at one or more cells of one field, in order, packed; into memory of ``allocate`` where they must be copied.

    Neighbours in one segment are taken together; a whole segment in its own order is handed over without a copy.
    """
    runs = _runs(cells)
    if len(runs) == 1:
        segment, start, stop = runs[0]
        return segment.column if stop - start == segment.column.rows else segment.column.slice(start, stop)
    first = runs[0][0]
    if all(segment is first for segment, _, _ in runs):
        return first.column.take([index for _, index in cells], allocate)
    return Column.concat([segment.column.slice(start, stop) for segment, start, stop in runs], allocate)


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
