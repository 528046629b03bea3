"""Joins the small messages that are sent over a link within one turn of the loop: one system call instead of many.

The first message of a quiet link leaves at once. While a link is busy, what is sent in a turn leaves together at its end, or as
soon as it is ``EARLY`` bytes: messages of up to ``SMALL`` bytes as one frame, ``MARK`` and then each message as the number of its
frames and each frame behind its length.
"""

import asyncio
import struct
from collections.abc import Callable

from asyncrl.runtime.shapes import Buffer
from asyncrl.runtime.transport import Frames

MARK = b"\xc1"
"""The one byte that MessagePack never begins with."""
LENGTH, COUNT = struct.Struct("<I"), struct.Struct("<H")
SMALL = 4096
MOST_FRAMES = 16
EARLY = 8192
"""Bytes that do not wait for the end of the turn: the other end works on them while this one makes more."""


class Cork:
    """The sending half of one link; ``emit`` hands one message to the socket."""

    __slots__ = ("_busy", "_emit", "_loop", "_queue", "_waiting")

    def __init__(self, loop: asyncio.AbstractEventLoop, emit: Callable[[Frames], None]) -> None:
        self._loop, self._emit = loop, emit
        self._busy = False
        self._queue: list[tuple[int, Frames]] = []
        self._waiting = 0

    def send(self, frames: Frames) -> None:
        """Sends now on a quiet link, else with others, at the end of this turn at the latest; the order is kept."""
        if self._busy:
            size = size_of(frames)
            self._queue.append((size, frames))
            self._waiting += size
            if self._waiting >= EARLY:
                self.flush()
            return
        self._busy = True
        self._loop.call_soon(self._turn)
        self._emit(frames)

    def _turn(self) -> None:
        if not self._queue:
            self._busy = False
            return
        # Still busy: the next turn's messages wait for each other too.
        self._loop.call_soon(self._turn)
        self.flush()

    def flush(self) -> None:
        """Sends all that waits."""
        queue, self._queue, self._waiting = self._queue, [], 0
        small: list[Frames] = []
        for length, frames in queue:
            if length <= SMALL and len(frames) <= MOST_FRAMES:
                small.append(frames)
                continue
            if small:
                self._emit(join(small))
                small = []
            self._emit(frames)
        if small:
            self._emit(join(small))


def size_of(frames: Frames) -> int:
    """Bytes of a message."""
    if len(frames) == 1:
        return len(frames[0])
    return sum(memoryview(frame).nbytes for frame in frames)


def join(messages: list[Frames]) -> Frames:
    """Several messages as one of a single frame; one alone stays as it is."""
    if len(messages) == 1:
        return messages[0]
    parts: list[Buffer] = [MARK]
    for frames in messages:
        parts.append(COUNT.pack(len(frames)))
        for frame in frames:
            view = memoryview(frame)
            parts.append(LENGTH.pack(view.nbytes))
            parts.append(view)
    return [b"".join(parts)]


def split(frame: memoryview) -> list[list[memoryview]]:
    """What ``join`` made, as its messages. Raises ValueError for a frame that ends within one.

    Buffers behind a header are copied: in place they would lie at odd addresses.
    """
    messages: list[list[memoryview]] = []
    position, end = 1, len(frame)
    while position < end:
        if end - position < COUNT.size:
            raise ValueError("a joined frame ends within a count")
        (count,) = COUNT.unpack_from(frame, position)
        position += COUNT.size
        frames: list[memoryview] = []
        for number in range(count):
            if end - position < LENGTH.size:
                raise ValueError("a joined frame ends within a length")
            (size,) = LENGTH.unpack_from(frame, position)
            position += LENGTH.size
            if size > end - position:
                raise ValueError("a joined frame ends within a message")
            piece = frame[position : position + size]
            frames.append(memoryview(bytes(piece)) if number else piece)
            position += size
        messages.append(frames)
    return messages


def deliver(frames: list[memoryview], received: Callable[[list[memoryview]], None]) -> None:
    """Gives the messages of one transport message to a receiver. A frame that cannot be split is given as it is: unreadable."""
    if len(frames) == 1 and len(frames[0]) and frames[0][0] == MARK[0]:
        try:
            messages = split(frames[0])
        except ValueError:
            received(frames)
            return
        for message in messages:
            received(message)
    else:
        received(frames)
