"""``TagColumns``: the tags of one partition, by columns. To list thousands of rows is then to copy a few lists."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from asyncrl.transfer_queue.row_tags import TagGroup
from asyncrl.transfer_queue.rows import Tag

if TYPE_CHECKING:
    from asyncrl.transfer_queue.segments import Row

SPARE_PLACES = 32
"""Empty places that a block may have however few rows it holds."""


class TagBlock:
    """Rows whose tags have the same ``names``, in the order in which they came to have them.

    ``rows`` has None, and the lists beside it something, where a row has left; ``empty`` counts such places.
    """

    __slots__ = ("empty", "keys", "names", "places", "rows", "values")

    def __init__(self, names: tuple[str, ...]) -> None:
        self.names = names
        self.places = {name: place for place, name in enumerate(names)}
        self.keys: list[str] = []
        self.rows: list[Row | None] = []
        self.values: list[list[Any]] = [[] for _ in names]
        self.empty = 0

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
        """The row at a place leaves; that of others may change."""
        self.rows[place] = None
        self.empty += 1
        if self.empty > SPARE_PLACES and 2 * self.empty > len(self.rows):
            self.close_up()

    def close_up(self) -> None:
        """Leaves no place empty."""
        kept = [place for place, row in enumerate(self.rows) if row is not None]
        self.keys = [self.keys[place] for place in kept]
        self.values = [[column[place] for place in kept] for column in self.values]
        self.rows = [self.rows[place] for place in kept]
        for place, row in enumerate(self.rows):
            if row is not None:
                row.place = place
        self.empty = 0

    def matching(self, where: Mapping[str, Any] | None) -> TagGroup | None:
        """The rows that match, None without any. The lists are copies."""
        if where and not all(name in self.places for name in where):
            return None
        if self.empty:
            self.close_up()
        if not where:
            return TagGroup(list(self.names), list(self.keys), [list(column) for column in self.values]) if self.keys else None
        found: Iterator[int] | range = range(len(self.keys))
        for name, wanted in where.items():
            found = _places_of(wanted, self.values[self.places[name]], found)
        kept = list(found)
        columns = [[column[place] for place in kept] for column in self.values]
        return TagGroup(list(self.names), [self.keys[place] for place in kept], columns) if kept else None


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
        if block.empty == len(block.rows):
            del self._blocks[block.names]

    def matching(self, where: Mapping[str, Any] | None) -> list[TagGroup]:
        """The rows whose tag has every item of ``where``, as groups."""
        return [group for block in self._blocks.values() if (group := block.matching(where)) is not None]
