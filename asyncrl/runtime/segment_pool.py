"""``SegmentPool``: the memory files of one process that messages are packed into. A pure table: no waiting, no threads, no wire.

A segment is free, or it has holders: the process itself while it writes or looks at it, and each connection that it was lent
to. Only one that is free is given out, so nobody ever writes to what somebody else reads.
"""

from collections.abc import Iterator
from typing import Protocol

import msgspec

from asyncrl.runtime.memory_file import MemoryFile

SMALLEST = 65536
MOST_SEGMENTS = 256
"""Each one is a descriptor here and a mapping in every process that has read it."""


class Reader(Protocol):
    """A connection whose other end has a segment mapped."""

    def retire(self, number: int) -> None:
        """The segment is gone; the other end need not keep its mapping."""
        ...


class Segment:
    """One memory file of the pool. ``number`` is never used again, ``view`` is all of it.

    ``readers`` are the connections that it was lent to, whose other ends have it mapped: for certain once they have given it back.
    ``adopted``: it came from another pool, and has data that stays.
    """

    __slots__ = ("adopted", "file", "freed", "holders", "number", "readers", "stale", "view")

    def __init__(self, number: int, file: MemoryFile) -> None:
        self.number, self.file, self.view = number, file, file.pages.view()
        self.holders = self.freed = 0
        self.adopted = self.stale = False
        self.readers: dict[Reader, bool] = {}

    @property
    def size(self) -> int:
        """Bytes."""
        return self.file.size


class PoolStats(msgspec.Struct, frozen=True):
    """Figures of a pool now. ``segments`` and ``bytes`` count all it has, ``free_segments`` and ``free_bytes`` those that wait
    for a message. Since its start: ``taken`` (messages or buffers that got a segment), ``refused`` (those that travelled
    as frames, because none was free), ``created``, ``dropped`` (unused ones), ``adopted`` (taken over from others), ``given``
    (taken over by others), ``abandoned`` (lent to a connection that broke)."""

    budget: int
    segments: int
    bytes: int
    free_segments: int
    free_bytes: int
    taken: int
    refused: int
    created: int
    dropped: int
    adopted: int
    given: int
    abandoned: int


class SegmentPool:
    """At most ``budget`` bytes in at most ``most`` segments, lent ones included.

    Data that stays in adopted segments takes at most half of it: a process that keeps much could else send nothing.
    """

    def __init__(self, budget: int, most: int = MOST_SEGMENTS) -> None:
        self.budget, self._most = budget, most
        self._segments: dict[int, Segment] = {}
        self._free: dict[int, dict[int, Segment]] = {}
        self._numbers = self._releases = 0
        self._bytes = self._free_bytes = self._adopted_bytes = self._reserved = self._reserved_bytes = 0
        self._counts = dict.fromkeys(("taken", "refused", "created", "dropped", "adopted", "given", "abandoned"), 0)

    def take(self, size: int, reader: Reader | None = None) -> Segment | None:
        """A free segment of ``size`` to twice as many bytes, held once, if possible one that ``reader`` has; None when there is none."""
        wanted = size_class(size)
        for room in _classes(wanted):
            free = self._free.get(room)
            if free:
                # Else the one that was used last: its bytes may still be in a cache, and the others may become superfluous.
                last = reversed(free.values())
                segment = next((each for each in last if reader in each.readers), None) or next(reversed(free.values()))
                del free[segment.number]
                segment.holders, segment.stale = 1, False
                self._free_bytes -= segment.size
                self._counts["taken"] += 1
                return segment
        self._counts["refused"] += 1
        return None

    def hold(self, segment: Segment) -> None:
        """One more holder of a segment that is held."""
        assert segment.holders > 0
        segment.holders += 1

    def release(self, segment: Segment) -> None:
        """One holder less; without any the segment is free again, unless it has left the pool."""
        segment.holders -= 1
        if not segment.holders and segment.number in self._segments:
            self._become_free(segment)

    def _become_free(self, segment: Segment) -> None:
        self._keep_no_more(segment)
        self._releases += 1
        segment.freed = self._releases
        self._free_bytes += segment.size
        self._free.setdefault(segment.size, {})[segment.number] = segment

    def _keep_no_more(self, segment: Segment) -> None:
        if segment.adopted:
            segment.adopted = False
            self._adopted_bytes -= segment.size

    def reserve(self, size: int, to_keep: bool = False) -> int:
        """Makes room for a new segment of ``size`` bytes, dropping free ones if need be. Returns the bytes it gets, 0 for no room.

        ``to_keep``: for one that will be adopted.
        """
        room = size_class(size)
        needed = room + self._reserved_bytes
        if to_keep and self._adopted_bytes + room > self.budget // 2:
            return 0
        if self._bytes - self._free_bytes + needed > self.budget:
            return 0
        while self._bytes + needed > self.budget or len(self._segments) + self._reserved >= self._most:
            oldest = min(self._free_segments(), key=lambda segment: segment.freed, default=None)
            if oldest is None:
                return 0
            self._drop(oldest)
        self._reserved += 1
        self._reserved_bytes += room
        return room

    def unreserve(self, room: int) -> None:
        """Gives back what ``reserve`` returned."""
        self._reserved -= 1
        self._reserved_bytes -= room

    def admit(self, file: MemoryFile, room: int) -> Segment:
        """A file for which ``room`` bytes were reserved becomes a free segment."""
        segment = self._enter(file, room)
        self._counts["created"] += 1
        self._become_free(segment)
        return segment

    def adopt(self, file: MemoryFile, room: int) -> Segment:
        """A file of another pool becomes a segment that is held once. Its room was reserved."""
        segment = self._enter(file, room)
        self._counts["adopted"] += 1
        segment.holders, segment.adopted = 1, True
        self._adopted_bytes += segment.size
        return segment

    def _enter(self, file: MemoryFile, room: int) -> Segment:
        self.unreserve(room)
        self._numbers += 1
        segment = self._segments[self._numbers] = Segment(self._numbers, file)
        self._bytes += segment.size
        return segment

    def give(self, segment: Segment) -> None:
        """The process that a segment was lent to has taken it over."""
        if self._leave(segment):
            segment.file.close()
            self._counts["given"] += 1

    def abandon(self, segment: Segment) -> None:
        """A segment was lent to a connection that broke. Whoever was at its end may yet write to it, so it is never used again.

        Its file is left open: what was sent last may still have to be opened.
        """
        if self._leave(segment):
            self._counts["abandoned"] += 1

    def _drop(self, segment: Segment) -> None:
        del self._free[segment.size][segment.number]
        self._free_bytes -= segment.size
        if self._leave(segment):
            segment.file.close()
            self._counts["dropped"] += 1

    def _leave(self, segment: Segment) -> bool:
        if self._segments.pop(segment.number, None) is None:
            return False
        self._bytes -= segment.size
        self._keep_no_more(segment)
        segment.view = memoryview(b"")
        readers, segment.readers = segment.readers, {}
        for reader in readers:
            reader.retire(segment.number)
        return True

    def trim(self) -> bool:
        """Drops the free segments that nobody took since the last time. Returns whether any are left that the next may drop."""
        for segment in list(self._free_segments()):
            if segment.stale:
                self._drop(segment)
            segment.stale = True
        return any(self._free.values())

    def forget_reader(self, reader: Reader) -> None:
        """A connection has ended."""
        for segment in self._segments.values():
            segment.readers.pop(reader, None)

    def _free_segments(self) -> Iterator[Segment]:
        """Those that are free."""
        for of_one_size in self._free.values():
            yield from of_one_size.values()

    def stats(self) -> PoolStats:
        """Figures now."""
        return PoolStats(
            budget=self.budget,
            segments=len(self._segments),
            bytes=self._bytes,
            free_segments=sum(map(len, self._free.values())),
            free_bytes=self._free_bytes,
            **self._counts,
        )

    def close(self) -> None:
        """Everything leaves the pool; what others read stays until they have done."""
        self._free.clear()
        self._free_bytes = 0
        for segment in list(self._segments.values()):
            # The others hear of it by the end of their connections.
            segment.readers.clear()
            self._leave(segment)
            segment.file.close()


def size_class(size: int) -> int:
    """The size of the segment for ``size`` bytes: four sizes to a doubling, so that at most a fifth of one is unused.

    >>> [size_class(n) >> 10 for n in (1, 65536, 65537, 100_000, 1 << 20, (1 << 20) + 1)]
    [64, 64, 80, 112, 1024, 1280]
    """
    if size <= SMALLEST:
        return SMALLEST
    step = 1 << ((size - 1).bit_length() - 3)
    return -(-size // step) * step


def _classes(smallest: int) -> Iterator[int]:
    """``smallest`` and the sizes above it, up to its double."""
    room = smallest
    while room <= 2 * smallest:
        yield room
        room = size_class(room + 1)
