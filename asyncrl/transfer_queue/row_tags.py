"""``RowTags``: the tags of many rows as columns. Building a dict for each of ten thousand rows costs more than moving them."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import msgspec

from asyncrl.transfer_queue.rows import Tag


class TagGroup(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """Rows whose tags have the same names: one list of values for each name, in the order of ``keys``."""

    names: list[str]
    keys: list[str]
    values: list[list[Any]]


class RowTags(Mapping[str, Tag]):
    """Tags by key. A tag is built when it is asked for; ``column`` gives one name's values without building any."""

    def __init__(self, groups: Iterable[TagGroup]) -> None:
        self._groups = list(groups)
        self._places: dict[str, tuple[TagGroup, int]] | None = None

    def __len__(self) -> int:
        return sum(len(group.keys) for group in self._groups)

    def __iter__(self) -> Iterator[str]:
        for group in self._groups:
            yield from group.keys

    def __getitem__(self, key: str) -> Tag:
        if self._places is None:
            self._places = {key: (group, index) for group in self._groups for index, key in enumerate(group.keys)}
        group, index = self._places[key]
        return {name: values[index] for name, values in zip(group.names, group.values, strict=True)}

    def column(self, name: str, default: Any = None) -> dict[str, Any]:
        """The values of one name by key, ``default`` for tags without it."""
        found: dict[str, Any] = {}
        for group in self._groups:
            place = group.names.index(name) if name in group.names else -1
            found.update(zip(group.keys, group.values[place], strict=True) if place >= 0 else dict.fromkeys(group.keys, default))
        return found

    def __repr__(self) -> str:
        return f"RowTags({dict(self)!r})"
