"""``RowTags``: the tags of many rows as columns. Building a dict for each of ten thousand rows costs more than moving them."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from operator import itemgetter
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


def grouped_tags(keys: list[str], tags: Sequence[Tag]) -> list[TagGroup]:
    """The tags of ``keys`` as groups of one set of names each; keys keep their order within a group."""
    if tags and (group := _one_group(list(tags[0]), keys, tags)) is not None:
        return [group]
    members: dict[tuple[str, ...], tuple[list[str], list[Tag]]] = {}
    for key, tag in zip(keys, tags, strict=True):
        own, found = members.setdefault(tuple(tag), ([], []))
        own.append(key)
        found.append(tag)
    return [TagGroup(list(names), own, columns_of(names, found)) for names, (own, found) in members.items()]


def _one_group(names: list[str], keys: list[str], tags: Sequence[Tag]) -> TagGroup | None:
    """All tags as one group; None unless each has exactly these names."""
    if set(map(len, tags)) != {len(names)}:
        return None
    try:
        return TagGroup(names, keys, columns_of(names, tags))
    except KeyError:
        return None


def columns_of(names: Sequence[str], tags: Sequence[Tag]) -> list[list[Any]]:
    """The values of each name. Raises KeyError for a tag that lacks one."""
    return [list(map(itemgetter(name), tags)) for name in names]
