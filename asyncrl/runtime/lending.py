"""``Lending``: the segments of this process that the other end of one connection has on loan."""

from typing import TypeAlias

from asyncrl.errors import WireError
from asyncrl.runtime.segment_pool import Reader, Segment
from asyncrl.runtime.shared_memory import SharedMemory
from asyncrl.runtime.sharing_messages import Lent, Place

Numbered: TypeAlias = list[tuple[int, memoryview]]
"""Buffers of a message with their indices."""

ALIGNMENT = 64
"""Where buffers begin in a segment, in bytes: a cache line, and what every dtype needs."""


class Lending:
    """Loans are numbered from 1; a segment is on loan to at most one connection, which may write to it."""

    def __init__(self, memory: SharedMemory, reader: Reader) -> None:
        self._memory, self._reader = memory, reader
        self._loans = 0
        self._lent: dict[int, Segment] = {}

    def lend(self, buffers: Numbered) -> tuple[list[Lent], list[Place]]:
        """Puts buffers into segments, in whole messages or not at all: those made in a segment as they are, copies of the others.

        What has no place in the result has to travel as a frame, because no segment was free.
        """
        segments: list[Segment] = []
        places: list[Place] = []
        copied: Numbered = []
        for index, view in buffers:
            found = self._memory.gift(view)
            if found is None:
                copied.append((index, view))
                continue
            if found[0] not in segments:
                segments.append(found[0])
            places.append(Place(index, segments.index(found[0]), found[1], view.nbytes))
        for segment in segments:
            self._memory.give_away(segment)
            self._memory.pool.hold(segment)
        if copied:
            places += self._copy(copied, segments)
        return [self._lend(segment) for segment in segments], places

    def _copy(self, buffers: Numbered, segments: list[Segment]) -> list[Place]:
        """Copies all buffers into one segment, which joins ``segments``; none of them when none is free."""
        segment = self._memory.take(sum(_aligned(view.nbytes) for _, view in buffers), self._reader)
        if segment is None:
            return []
        segments.append(segment)
        offset, places = 0, []
        for index, view in buffers:
            segment.view[offset : offset + view.nbytes] = view
            places.append(Place(index, len(segments) - 1, offset, view.nbytes))
            offset += _aligned(view.nbytes)
        return places

    def _lend(self, segment: Segment) -> Lent:
        self._loans += 1
        self._lent[self._loans] = segment
        segment.readers.setdefault(self._reader, False)
        file = segment.file
        return Lent(self._loans, segment.number, file.descriptor, file.inode, file.size)

    def released(self, loan: int) -> None:
        """The other end has done with a segment. Raises WireError for a loan that does not run."""
        self._memory.release(self._returned(loan))

    def adopted(self, loan: int) -> None:
        """The other end keeps a segment. Raises WireError for a loan that does not run."""
        segment = self._returned(loan)
        segment.readers.pop(self._reader, None)
        self._memory.pool.give(segment)

    def taken_back(self, loan: int) -> memoryview:
        """All bytes of a segment that came back with a message; released when nothing refers to them. Raises WireError."""
        segment = self._returned(loan)
        return self._memory.keep(segment, segment.file.pages.view())

    def _returned(self, loan: int) -> Segment:
        segment = self._lent.pop(loan, None)
        if segment is None:
            raise WireError(f"loan {loan} is returned, which does not run")
        segment.readers[self._reader] = True
        return segment

    def end(self, orderly: bool) -> None:
        """The connection is over. Whoever is at its end may yet write, also one that only seems dead: what it has is never used again.

        ``orderly``: what was sent may still arrive, and be opened.
        """
        lent, self._lent = self._lent, {}
        for segment in lent.values():
            self._memory.abandon(segment, linger=orderly and not segment.readers[self._reader])
        self._memory.pool.forget_reader(self._reader)


def _aligned(size: int) -> int:
    return -(-size // ALIGNMENT) * ALIGNMENT
