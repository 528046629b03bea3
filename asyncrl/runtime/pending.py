"""One call at its caller: what is awaited, under which limit, and how its answer is read."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from asyncrl.errors import AsyncRLError, CallTimedOut, WireError
from asyncrl.runtime.codec import Codec
from asyncrl.runtime.deadlines import LATE, SECOND_LOOK, Deadlines

if TYPE_CHECKING:
    from asyncrl.runtime.outgoing import Window
    from asyncrl.runtime.waits import Wait

logger = logging.getLogger(__name__)


class Limit(msgspec.Struct, frozen=True):
    """How long a caller waits: ``deadline`` seconds by the clock, or ``silence`` seconds without a sign of progress."""

    deadline: float = 30.0
    silence: float = 0.0


class Pending:
    """A call that is not answered yet. ``lost`` tells that its connection broke, so nobody knows whether it ran."""

    __slots__ = (
        "_deadlines",
        "_loop",
        "_timer",
        "_touched",
        "answered",
        "expires",
        "future",
        "limit",
        "lost",
        "result",
        "wait",
        "what",
        "who",
        "window",
    )

    def __init__(self, who: str, what: str, result: Codec, window: Window, limit: Limit, deadlines: Deadlines) -> None:
        self.who, self.what, self.result, self.window, self.limit = who, what, result, window, limit
        self._deadlines = deadlines
        self._loop = asyncio.get_running_loop()
        self.future: asyncio.Future[Any] = self._loop.create_future()
        self.answered = self.lost = False
        self.wait: Wait | None = None
        self.expires = 0.0
        self._touched = 0.0
        self._timer: asyncio.TimerHandle | None = None

    def arm(self) -> None:
        """Starts the limit anew."""
        if self.limit.silence:
            self._touched = self._loop.time()
            self._timer = self._loop.call_later(self.limit.silence, self._look)
        elif self.limit.deadline:
            self._deadlines.add(self, self.limit.deadline)

    def disarm(self) -> None:
        """Stops the limit."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        elif not self.limit.silence:
            self._deadlines.remove(self, self.limit.deadline)

    def touch(self) -> None:
        """The callee got further."""
        self._touched = self.window.touched = self._loop.time()
        if self.wait is not None:
            self.wait.touched = self._touched

    def _look(self) -> None:
        self._timer = None
        left = self._touched + self.limit.silence - self._loop.time()
        if left < -LATE:
            # This loop stood still; signs of progress may be waiting to be read.
            self._touched = self._loop.time() - self.limit.silence
            self._timer = self._loop.call_later(SECOND_LOOK, self._look)
        elif left <= 0:
            self.expire()
        else:
            self._timer = self._loop.call_later(left, self._look)

    def expire(self) -> None:
        """The limit has passed."""
        silence = self.limit.silence
        what = f"{self.what} (no sign of progress)" if silence else self.what
        if not self.future.done():
            self.future.set_exception(CallTimedOut(self.who, what, silence or self.limit.deadline))

    def reply(self, data: msgspec.Raw, frames: Sequence[memoryview]) -> None:
        """The result came."""
        self.answered = True
        if self.future.done():
            return
        try:
            value = self.result.decode(data, frames)
        except WireError as error:
            self.future.set_exception(WireError(f"the result of {self.what} on {self.who}: {error}"))
            return
        self.future.set_result(value)

    def end(self, items: int) -> None:
        """It is said to have ended, without the result that a call has."""
        self.fail(WireError(f"{self.who} ended {self.what} without a result"))

    def fail(self, error: AsyncRLError) -> None:
        """The call will have no result."""
        self.answered = True
        if not self.future.done():
            self.future.set_exception(error)


class TellPending(Pending):
    """A message without a reply: nobody waits, so nothing expires, and a failure is only heard of in the log."""

    __slots__ = ()

    def reply(self, data: msgspec.Raw, frames: Sequence[memoryview]) -> None:
        self.answered = True

    def end(self, items: int) -> None:
        self.answered = True

    def fail(self, error: AsyncRLError) -> None:
        self.answered = True
        logger.warning("tell of %s to %s failed: %s", self.what, self.who, error)


class StreamPending(Pending):
    """A stream; the limit holds for each item, and only while the consumer waits for it. ``granted`` items may come so far."""

    __slots__ = ("_came", "_ended", "_error", "granted", "items")

    def __init__(self, who: str, what: str, result: Codec, window: Window, limit: Limit, deadlines: Deadlines) -> None:
        super().__init__(who, what, result, window, limit, deadlines)
        self.items: deque[tuple[msgspec.Raw, Sequence[memoryview]]] = deque()
        self._came = self.granted = 0
        self._ended = False
        self._error: AsyncRLError | None = None

    async def next(self) -> tuple[bool, Any]:
        """(True, item), or (False, None) at the end. Raises what ended the stream, after the items before it."""
        if not self.items and not self._ended:
            self.future = self._loop.create_future()
            self.arm()
            try:
                await self.future
            finally:
                self.disarm()
        if self.items:
            data, frames = self.items.popleft()
            try:
                return True, self.result.decode(data, frames)
            except WireError as error:
                raise WireError(f"an item of {self.what} on {self.who}: {error}") from error
        if self._error is not None:
            # The error's traceback will hold this frame: no cycle may close through what it holds.
            ended, self._error = self._error, None
            try:
                raise ended
            finally:
                del ended
        return False, None

    def _wake(self) -> None:
        if not self.future.done():
            self.future.set_result(None)

    def item(self, data: msgspec.Raw, frames: Sequence[memoryview], place: int) -> str:
        """One item came. Returns what is wrong with a producer that sends more than it may, "" for one that keeps to it.

        An item that is not the next ends the stream, after the items before it; the consumer then cancels the producer.
        """
        if self._ended:
            return ""
        self.touch()
        if place != self._came:
            self._end(WireError(f"item {place} of {self.what} on {self.who} came, item {self._came} was expected"))
        elif place >= self.granted:
            return f"item {place} of {self.what}, {self.granted} were asked for"
        else:
            self._came += 1
            self.items.append((data, frames))
            self._wake()
        return ""

    def reply(self, data: msgspec.Raw, frames: Sequence[memoryview]) -> None:
        self.fail(WireError(f"{self.who} answered {self.what}, a stream, as a call"))

    def end(self, items: int) -> None:
        self.answered = True
        missing = items != self._came
        self._end(WireError(f"{self.who} ended {self.what} after {items} items, {self._came} came") if missing else None)

    def fail(self, error: AsyncRLError) -> None:
        self.answered = True
        self._end(error)

    def _end(self, error: AsyncRLError | None) -> None:
        if not self._ended:
            self._ended, self._error = True, error
            self._wake()
