"""Keys: on which shard a row lives, and what every list of keys must satisfy."""

import zlib
from collections.abc import Mapping, Sequence, Sized

from asyncrl.tensors.wire import Column


def placement(key: str, slots: int) -> int:
    """The slot of a row: CRC32 of the key up to its first ``_``, modulo ``slots``. The same in every process and version.

    >>> placement("s1e0p7", 4) == placement("s1e0p7_3_0", 4)
    True
    """
    return zlib.crc32(key.partition("_")[0].encode()) % slots


def by_slot(keys: Sequence[str], slots: int) -> dict[int, list[int]]:
    """The positions in ``keys`` of each slot that holds any of them, in rising order of slots.

    >>> by_slot(["a_1", "a_2"], 1)
    {0: [0, 1]}
    """
    if slots == 1:
        return {0: list(range(len(keys)))} if keys else {}
    found: dict[int, list[int]] = {}
    for position, key in enumerate(keys):
        found.setdefault(placement(key, slots), []).append(position)
    return dict(sorted(found.items()))


def check_keys(keys: Sequence[str]) -> None:
    """Raise ValueError when a key is empty or named twice, TypeError for one string in place of a list."""
    if isinstance(keys, str):
        raise TypeError(f"keys are a list of strings, got {keys!r}")
    distinct = dict.fromkeys(keys)
    if "" in distinct:
        raise ValueError("the empty string is no key")
    if len(distinct) != len(keys):
        seen: set[str] = set()
        twice = next(key for key in keys if key in seen or seen.add(key))  # type: ignore[func-returns-value]
        raise ValueError(f"key {twice!r} is named twice in one request")


def check_put(keys: Sequence[str], fields: Mapping[str, Column], tags: Sized | None) -> None:
    """Raise ValueError unless keys are distinct and every column and the tags have one row for each."""
    check_keys(keys)
    for name, column in fields.items():
        if column.rows != len(keys):
            raise ValueError(f"field {name!r} has {column.rows} rows for {len(keys)} keys")
    if tags is not None and len(tags) != len(keys):
        raise ValueError(f"{len(tags)} tags for {len(keys)} keys")
