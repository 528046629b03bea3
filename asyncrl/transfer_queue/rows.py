"""What clients and shards say to each other about rows: tags, guards, events of a watch, figures of a shard."""

from collections.abc import Mapping
from typing import Any

import msgspec

Tag = dict[str, Any]
"""The small, opaque description of a row; puts merge into it."""


class Guard(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A put is applied only if row ``key`` exists and still carries every item of ``tag``."""

    key: str
    tag: Tag


class Origin(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """Who wrote a field: the process, when (unix seconds), and in which step and with which policy version, -1 where unknown.

    ``computed``: it is what that step made of the row. A run that goes on from before that step must not find it.
    """

    writer: str
    at: float
    step: int = -1
    version: int = -1
    computed: bool = False

    def undone(self, resume_step: int | None) -> bool:
        """Whether a run that goes on from the checkpoint of ``resume_step`` begins without it; None: the same run goes on."""
        return resume_step is not None and self.computed and self.step > resume_step


class Stamp(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """What a writer says of its fields; the shard adds who it is, and when. See ``Origin``."""

    step: int = -1
    version: int = -1
    computed: bool = False


class Cut(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A moment of one shard whose rows are kept for a snapshot: the last change before it, in which life, cut for which time."""

    incarnation: str
    event: int
    number: int


class Snapshot(msgspec.Struct, frozen=True, tag="snapshot", forbid_unknown_fields=True):
    """All matching rows of one shard at one moment; replaces what was known of that shard.

    The first event of a watch, and again after the watcher fell too far behind or the shard was restarted. ``lost`` is the
    incarnation whose rows went with a restart, "" where none did.
    """

    slot: int
    incarnation: str
    seq: int
    rows: dict[str, Tag]
    lost: str = ""


class Change(msgspec.Struct, frozen=True, tag="change", forbid_unknown_fields=True):
    """Rows of one shard that changed since its last event.

    None: the row was cleared, or no longer matches. States in between may be merged, the last one is always there.
    ``seq`` is one more than that of the shard's event before it.
    """

    slot: int
    incarnation: str
    seq: int
    rows: dict[str, Tag | None]


WatchEvent = Snapshot | Change


class TableStats(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Figures of the rows of one shard now; bytes are of packed values, without offsets, keys and tags.

    ``stored_bytes`` is what the segments hold, ``live_bytes`` what rows still refer to; ``event`` numbers the last change.
    """

    slot: int
    incarnation: str
    event: int
    partitions: dict[str, int]
    """Rows of each partition."""
    segments: int
    stored_bytes: int
    live_bytes: int
    watchers: int


class WaitingProducer(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Somebody who waits for room: its process, the bytes, and for how many seconds already."""

    who: str
    needed: int
    seconds: float


class ShardStats(TableStats, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Figures of one shard now: its rows, its budget, and its journal."""

    used_bytes: int
    """What counts against the budget: values and a fixed sum for each row, each of its fields and each segment."""
    budget_bytes: int
    waiting: list[WaitingProducer]
    """Producers that wait for room, the first in turn first."""
    journal: str
    journal_bytes: int
    damaged: list[str]
    """What could not be read back from disk when this life of the shard began, in words."""


def tag_in_words(tag: Tag) -> str:
    """A tag as event files have it: JSON, or, where keys inside it are none of JSON's, Python.

    >>> tag_in_words({"n": [1, None]}), tag_in_words({"n": {None: 1}})
    ('{"n":[1,null]}', "{'n': {None: 1}}")
    """
    try:
        return msgspec.json.encode(tag).decode()
    except TypeError:
        return repr(tag)


def matches(tag: Tag, where: Mapping[str, Any] | None) -> bool:
    """Whether a tag has every item of ``where``.

    >>> matches({"status": "running", "n": 1}, {"status": "running"}), matches({}, {"status": None})
    (True, False)
    """
    return not where or all(name in tag and tag[name] == value for name, value in where.items())
