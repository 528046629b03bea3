"""``TagColumns``: the tags of one partition, by columns. To list thousands of rows is then to copy a few lists."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from asyncrl.transfer_queue.row_tags import TagGroup
from asyncrl.transfer_queue.rows import Tag

if TYPE_CHECKING:
    from asyncrl.transfer_queue.segments import Row

T = TypeVar("T")

SPARE_PLACES = 32
"""Empty places that a block may have however few rows it holds, and that a list leaves out without closing them up."""


class TagBlock:
    """Rows whose tags have the same ``names``, in the order in which they came to have them.

    ``empty`` are the places that rows have left: there is None in ``rows`` and the columns, and "" in ``keys``.
    """

    __slots__ = ("empty", "keys", "names", "places", "rows", "values")

    def __init__(self, names: tuple[str, ...]) -> None:
        self.names = names
        self.places = {name: place for place, name in enumerate(names)}
        self.keys: list[str] = []
        self.rows: list[Row | None] = []
        self.values: list[list[Any]] = [[] for _ in names]
        self.empty: list[int] = []

    def add(self, key: str, row: Row, tag: Mapping[str, Any]) -> None:
        """One more row; its tag has the names of this block in their order."""
        row.block, row.place = self, len(self.keys)
        self.keys.append(key)
        self.rows.append(row)
        for column, value in zip(self.values, tag.values(), strict=True):
            column.append(value)

    def tag(self, place: int) -> Tag:
        """The tag at a place, as a dict of its own."""
        return {name: column[place] for name, column in zip(self.names, self.values, strict=True)}

    def remove(self, place: int) -> None:
        """The row at a place leaves, and nothing of its tag stays; the places of others may change."""
        self.rows[place], self.keys[place] = None, ""
        for column in self.values:
            column[place] = None
        self.empty.append(place)
        if len(self.empty) > SPARE_PLACES and 2 * len(self.empty) > len(self.rows):
            self.close_up()

    def close_up(self) -> None:
        """Leaves no place empty."""
        gaps = sorted(self.empty)
        self.keys, self.rows = without(self.keys, gaps), without(self.rows, gaps)
        self.values = [without(column, gaps) for column in self.values]
        for place, row in enumerate(self.rows):
            if row is not None:
                row.place = place
        self.empty.clear()

    def matching(self, where: Mapping[str, Any] | None) -> TagGroup | None:
        """The rows that match, None without any. The lists are copies."""
        if where and not all(name in self.places for name in where):
            return None
        if len(self.empty) > SPARE_PLACES:
            self.close_up()
        if len(self.empty) == len(self.rows):
            return None
        if not where:
            gaps = sorted(self.empty)
            return TagGroup(list(self.names), without(self.keys, gaps), [without(column, gaps) for column in self.values])
        found: Iterator[int] | range = range(len(self.keys))
        for name, wanted in where.items():
            found = _places_of(wanted, self.values[self.places[name]], found)
        kept = [place for place in found if self.rows[place] is not None]
        columns = [[column[place] for place in kept] for column in self.values]
        return TagGroup(list(self.names), [self.keys[place] for place in kept], columns) if kept else None


def without(column: list[T], gaps: Sequence[int]) -> list[T]:
    """A copy that leaves out some places, which are given in rising order.

    >>> without(["a", "b", "c", "d"], [0, 2])
    ['b', 'd']
    """
    if not gaps:
        return column[:]
    found: list[T] = []
    start = 0
    for gap in gaps:
        found += column[start:gap]
        start = gap + 1
    found += column[start:]
    return found


def _places_of(wanted: Any, column: list[Any], places: Iterator[int] | range) -> Iterator[int]:
    return (place for place in places if column[place] == wanted)


class TagColumns:
    """All rows of a partition by the names of their tags."""

    __slots__ = ("_blocks",)

    def __init__(self) -> None:
        self._blocks: dict[tuple[str, ...], TagBlock] = {}

    def add(self, key: str, row: Row, tag: Tag) -> None:
        """A row that is in no block yet."""
        names = tuple(tag)
        block = self._blocks.get(names)
        if block is None:
            block = self._blocks[names] = TagBlock(names)
        block.add(key, row, tag)

    def merge(self, key: str, row: Row, tag: Tag) -> None:
        """Some values of a row's tag are new; new names take it to another block."""
        block, place = row.block, row.place
        if all(name in block.places for name in tag):
            for name, value in tag.items():
                block.values[block.places[name]][place] = value
            return
        merged = {**block.tag(place), **tag}
        self.remove(row)
        self.add(key, row, merged)

    def remove(self, row: Row) -> None:
        """The row is in no block any more."""
        block = row.block
        block.remove(row.place)
        if len(block.empty) == len(block.rows):
            del self._blocks[block.names]

    def matching(self, where: Mapping[str, Any] | None) -> list[TagGroup]:
        """The rows whose tag has every item of ``where``, as groups."""
        return [group for block in self._blocks.values() if (group := block.matching(where)) is not None]
