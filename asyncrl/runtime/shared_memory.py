"""``SharedMemory``: the segments of one process, made in the background, and word of the views on them that have ended.

Needs a running loop; everything but ``leave_word`` is called on it.
"""

import asyncio
import contextlib
import logging
import os
import weakref
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any, Protocol

from asyncrl.runtime.host import Host, own_pid
from asyncrl.runtime.memory_file import MemoryFile, span_of, watch
from asyncrl.runtime.segment_pool import SMALLEST, PoolStats, Reader, Segment, SegmentPool
from asyncrl.runtime.shapes import Buffer
from asyncrl.runtime.sharing_messages import Offer
from asyncrl.runtime.tasks import Crew, to_its_end

logger = logging.getLogger(__name__)

BUDGET = 1 << 30
"""Bytes of one process, unless it is told otherwise. Memory is taken as it is needed, and given back when it is not."""
MOST_IN_THE_MAKING = 2
"""Segments that are made at the same time: the kernel fills them with zeros, which takes longer than a copy."""
UNUSED_SECONDS = 30.0
"""A free segment that nobody takes for so long, to twice as long, is given back to the kernel."""
CLOSE_SECONDS = 5.0
LINGER = 0.2
"""How long what was sent last can still be opened by a process that has not opened it yet: as long as frames would linger."""
PROOF_BYTES = 32


class Borrower(Protocol):
    """A connection with segments of the process at its other end."""

    def adopt(self, view: memoryview) -> bool:
        """See ``SharedMemory.adopt``."""
        ...


class OwnView:
    """A view that this process has of one of its own segments. ``gift``: the next message with it gives the segment away, uncopied."""

    __slots__ = ("gift", "segment", "watch")

    def __init__(self, segment: Segment, watch: weakref.ref[Any], gift: bool) -> None:
        self.segment, self.watch, self.gift = segment, watch, gift


class SharedMemory:
    """At most ``budget`` bytes of segments; ``borrowers`` are the connections that share memory."""

    def __init__(self, host: Host, budget: int) -> None:
        self.budget, self.pool = budget, SegmentPool(budget)
        self.borrowers: dict[Borrower, None] = {}
        self._host, self._loop = host, asyncio.get_running_loop()
        self._crew = Crew()
        self._views: dict[int, OwnView] = {}
        self._number = self._gifts = self._failures = 0
        self._words: deque[Callable[[], None]] = deque()
        self._scheduled = self._closed = False
        self._lingering: dict[MemoryFile, asyncio.TimerHandle] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._proof: MemoryFile | None = None

    def take(self, size: int, reader: Reader | None = None) -> Segment | None:
        """A segment to write to, held once. None when none is free: then one is made for the next time, if there is room."""
        self.collect()
        segment = self.pool.take(size, reader)
        if segment is None and not self._closed and len(self._crew) < MOST_IN_THE_MAKING:
            room = self.pool.reserve(size)
            if room:
                self._crew.start(self._make, room, name=f"segment of {room} bytes")
        return segment

    async def _make(self, room: int) -> None:
        """Adds a segment to the pool.

        consumes: room that was reserved
        produces: a free segment
        waits for: a worker thread
        unblocked by: the kernel, which has zeroed the pages or refuses to
        """
        try:
            file = await to_its_end(lambda: self._host.run_blocking(MemoryFile.create, room))
        except asyncio.CancelledError:
            self.pool.unreserve(room)
            raise
        except OSError as error:
            self.pool.unreserve(room)
            self._failures += 1
            if self._failures & (self._failures - 1) == 0:
                logger.warning("no segment of %d bytes (%d failures so far), buffers travel as frames: %s", room, self._failures, error)
            return
        self.pool.admit(file, room)
        self._watch_unused()

    def release(self, segment: Segment) -> None:
        """One holder of a segment less."""
        self.pool.release(segment)
        self._watch_unused()

    def abandon(self, segment: Segment, linger: bool) -> None:
        """A holder is gone without giving a segment back. ``linger``: it may get word of it yet, and open it, for a moment."""
        self.pool.abandon(segment)
        self.release(segment)
        if linger and not self._closed:
            self._lingering[segment.file] = self._loop.call_later(LINGER, self._stop_lingering, segment.file)
        else:
            segment.file.close()

    def _stop_lingering(self, file: MemoryFile) -> None:
        self._lingering.pop(file).cancel()
        file.close()

    def _watch_unused(self) -> None:
        if self._timer is None and not self._closed:
            self._timer = self._loop.call_later(UNUSED_SECONDS, self._trim)

    def _trim(self) -> None:
        self._timer = None
        if self.pool.trim():
            self._watch_unused()

    def allocate(self, size: int) -> memoryview:
        """Writable memory for buffers of one message, in a segment where one is free.

        The message that carries it gives it away: its receiver may write to it, so the sender leaves it alone from then on.
        """
        segment = self.take(size) if size >= SMALLEST else None
        if segment is None:
            return memoryview(bytearray(size))
        return self._hand_out(segment, segment.file.pages.view(), gift=True)[:size]

    def keep(self, segment: Segment, view: memoryview) -> memoryview:
        """``view``, of the pages of a segment that is held once; the segment is released when it has ended."""
        return self._hand_out(segment, view, gift=False)

    def _hand_out(self, segment: Segment, view: memoryview, gift: bool) -> memoryview:
        self._number += 1
        self._gifts += gift
        ended = watch(view, partial(self.leave_word, partial(self._has_ended, self._number)))
        self._views[self._number] = OwnView(segment, ended, gift)
        return view

    def _has_ended(self, number: int) -> None:
        view = self._views.pop(number, None)
        if view is not None:
            self._gifts -= view.gift
            self.release(view.segment)

    def gift(self, buffer: memoryview) -> tuple[Segment, int] | None:
        """The segment from ``allocate`` that a buffer lies in, and where in it; None when it lies elsewhere or was given away."""
        if not self._gifts:
            return None
        span = span_of(buffer)
        for view in self._views.values():
            offset = view.segment.file.pages.offset_of(span) if view.gift else None
            if offset is not None:
                return view.segment, offset
        return None

    def give_away(self, segment: Segment) -> None:
        """A segment from ``allocate`` is lent: from now on its buffers are copied like any others."""
        for view in self._views.values():
            if view.segment is segment and view.gift:
                view.gift = False
                self._gifts -= 1

    def adopt(self, buffer: Buffer) -> bool:
        """Takes over, from its sender, the whole segment that ``buffer`` came in: for data that stays.

        False, and nothing changes, when it came as a frame or the budget has no room: then a copy frees the sender's.
        """
        return any(borrower.adopt(memoryview(buffer)) for borrower in list(self.borrowers))

    def offer(self) -> Offer:
        """What a process must be able to read before it is sent a segment. Raises OSError."""
        if self._proof is None:
            self._proof = MemoryFile.create(os.sysconf("SC_PAGE_SIZE"))
            self._proof.pages.view()[:PROOF_BYTES] = self._host.entropy(PROOF_BYTES)
        file = self._proof
        return Offer(own_pid(), file.descriptor, file.inode, file.size, bytes(file.pages.view()[:PROOF_BYTES]))

    def leave_word(self, act: Callable[[], None]) -> None:
        """Has ``act`` called on the loop. For finalizers, which run on any thread and at any moment: takes no lock, never raises."""
        self._words.append(act)
        # In this order: whoever clears the mark reads what was left before.
        if not self._scheduled:
            self._scheduled = True
            with contextlib.suppress(RuntimeError):
                # A loop that is closed refuses; nobody waits for segments any more.
                (self._loop.call_soon if self._on_the_loop() else self._loop.call_soon_threadsafe)(self.collect)

    def _on_the_loop(self) -> bool:
        """Whether this is the thread of the loop: there it need not be woken, which costs two system calls."""
        try:
            return asyncio.get_running_loop() is self._loop
        except RuntimeError:
            return False

    def collect(self) -> None:
        """Acts on the words that were left."""
        self._scheduled = False
        while self._words:
            self._words.popleft()()

    def stats(self) -> PoolStats:
        """Figures of the pool now."""
        self.collect()
        return self.pool.stats()

    async def close(self) -> None:
        """Frees all segments; views that are left keep their pages until they end."""
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        await self._crew.close(CLOSE_SECONDS)
        if self._lingering:
            await asyncio.sleep(LINGER)
        for file in list(self._lingering):
            self._stop_lingering(file)
        self._words.clear()
        self._views.clear()
        self.pool.close()
        if self._proof is not None:
            self._proof.close()
            self._proof = None
