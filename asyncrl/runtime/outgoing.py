"""The caller's end of a connection: one peer process, the calls it owes an answer, and the credit it gives."""

import asyncio
import itertools
import logging
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from asyncrl.errors import ActorDied, AsyncRLError, Undeliverable, WireError
from asyncrl.runtime.codec import ENCODER
from asyncrl.runtime.deadlines import LATE, SECOND_LOOK
from asyncrl.runtime.failures import rebuild
from asyncrl.runtime.messages import (
    TO_CALLER,
    Accepted,
    ActorAddress,
    Call,
    Cancel,
    Credit,
    Failure,
    Goodbye,
    Message,
    Progress,
    Refused,
    Reply,
    StreamEnd,
    StreamItem,
    Welcome,
)
from asyncrl.runtime.pending import Pending, StreamPending
from asyncrl.runtime.shapes import Buffer
from asyncrl.runtime.site import Site
from asyncrl.runtime.transport import Link, Transport

logger = logging.getLogger(__name__)

DECODER: msgspec.msgpack.Decoder[Message] = msgspec.msgpack.Decoder(TO_CALLER)
LINGER = 0.2
WELCOME_SECONDS = 30.0
"""How long a connection may take until the hello was answered. A key that differs is seen at once; this is for a process that is
connected and says nothing."""


class Window:
    """Credit towards one actor; waiters get it in their order.

    One that was given a credit stays in ``waiters`` until it runs, so that nobody who comes meanwhile overtakes it.
    ``touched`` is when a call last got further, or gave its credit to a waiter: the actor lives.
    """

    __slots__ = ("free", "touched", "waiters")

    def __init__(self, size: int) -> None:
        self.free = size
        self.touched = 0.0
        self.waiters: deque[asyncio.Future[bool]] = deque()

    def release(self) -> None:
        """Returns one credit, to the first waiter that has none."""
        for waiter in self.waiters:
            if not waiter.done():
                self.touched = waiter.get_loop().time()
                waiter.set_result(True)
                return
        self.free += 1

    async def acquire(self, silence: float = 0.0) -> bool:
        """Takes one credit. Waits behind the others; returns False after ``silence`` seconds, unless 0, without a sign of the actor."""
        if self.free and not self.waiters:
            self.free -= 1
            return True
        loop = asyncio.get_running_loop()
        waiter: asyncio.Future[bool] = loop.create_future()
        self.waiters.append(waiter)
        if self.free:
            # Those before it have their credit, and their turn comes before this.
            self.free -= 1
            loop.call_soon(self.release)
        patience = Patience(self, waiter, silence) if silence else None
        try:
            return await waiter
        except asyncio.CancelledError:
            if waiter.done() and not waiter.cancelled() and waiter.exception() is None and waiter.result():
                self.release()
            raise
        finally:
            self.waiters.remove(waiter)
            if patience is not None:
                patience.stop()

    def fail(self, error: Callable[[], AsyncRLError]) -> None:
        """Wakes all waiters with an error."""
        for waiter in self.waiters:
            if not waiter.done():
                waiter.set_exception(error())


class Patience:
    """Lets one waiter of a window go when that has been silent for ``silence`` seconds, all of them during the wait."""

    def __init__(self, window: Window, waiter: asyncio.Future[bool], silence: float) -> None:
        self._window, self._waiter, self._silence = window, waiter, silence
        self._loop = waiter.get_loop()
        self._since = self._loop.time()
        self._timer = self._loop.call_later(silence, self._look)

    def _look(self, again: bool = False) -> None:
        left = max(self._since, self._window.touched) + self._silence - self._loop.time()
        if left > 0:
            self._timer = self._loop.call_later(left, self._look)
        elif left < -LATE and not again:
            # This loop stood still; signs may be waiting to be read.
            self._timer = self._loop.call_later(SECOND_LOOK, self._look, True)
        elif not self._waiter.done():
            self._waiter.set_result(False)

    def stop(self) -> None:
        """The wait is over."""
        self._timer.cancel()


class Outgoing:
    """Receiver of one peer's answers. ``lost`` hears that the connection broke, ``gone`` that it is over, for whatever reason."""

    def __init__(
        self,
        site: Site,
        address: ActorAddress,
        transport: Transport,
        lost: "Callable[[Outgoing, str], None]",
        gone: "Callable[[Outgoing], None]",
    ) -> None:
        self.process, self.generation, self.role = address.process, address.generation, address.role
        self.welcome = False
        self.closed = False
        self.waits = site.waits
        self._credit = site.credit
        self._lost, self._gone = lost, gone
        self._pending: dict[int, Pending] = {}
        self._windows: dict[str, Window] = {}
        self._numbers = itertools.count(1)
        self._broken: Callable[[], AsyncRLError] | None = None
        self._link: Link = transport.connect(address.endpoint, self, address.role)
        self._registration = asyncio.get_running_loop().call_later(WELCOME_SECONDS, self._unregistered)
        self._link.send([ENCODER.encode(site.identity.hello_to(address))])

    def window(self, actor: str) -> Window:
        """The credit towards one actor."""
        found = self._windows.get(actor)
        if found is None:
            found = self._windows[actor] = Window(self._credit)
        return found

    def number(self) -> int:
        """An unused call number."""
        return next(self._numbers)

    def call(self, call: Call, frames: Sequence[Buffer], pending: Pending) -> None:
        """Sends a call whose credit was taken. Raises WireError, with the credit returned, if it is too large to travel."""
        if self._broken is not None:
            raise self._broken()
        self._pending[call.id] = pending
        try:
            self._link.send([ENCODER.encode(call), *frames])
        except WireError:
            self._pending.pop(call.id, None)
            pending.window.release()
            raise

    def cancel(self, number: int) -> None:
        """The caller has left; its credit returns with the callee's answer."""
        if number in self._pending and not self.closed:
            self._link.send([ENCODER.encode(Cancel(number))])

    def credit(self, number: int, items: int) -> None:
        """Lets a stream go on."""
        if number in self._pending and not self.closed:
            self._link.send([ENCODER.encode(Credit(number, items))])

    def received(self, frames: Sequence[memoryview]) -> None:
        """One answer of the peer."""
        try:
            message = DECODER.decode(frames[0])
        except (msgspec.DecodeError, RecursionError, IndexError, ValueError) as error:
            self.broken(f"a message that cannot be read: {error}")
            return
        if isinstance(message, Reply):
            pending = self._pending.pop(message.id, None)
            if pending is not None:
                pending.window.release()
                pending.reply(message.result, frames[1:])
        elif isinstance(message, StreamItem | Progress):
            self._go_on(message, frames[1:])
        elif isinstance(message, Accepted | StreamEnd):
            items = message.items if isinstance(message, StreamEnd) else 0
            self._finish(message.id, lambda pending: pending.end(items))
        elif isinstance(message, Failure):
            failure = message
            self._finish(message.id, lambda pending: pending.fail(rebuild(failure, pending.who, pending.what)))
        else:
            self._state(message)

    def _finish(self, number: int, act: Callable[[Pending], None]) -> None:
        pending = self._pending.pop(number, None)
        if pending is not None:
            pending.window.release()
            act(pending)

    def _go_on(self, message: Message, frames: Sequence[memoryview]) -> None:
        if isinstance(message, StreamItem):
            pending = self._pending.get(message.id)
            # Who does not keep to its credit is cut off: nothing else bounds what it may send.
            if isinstance(pending, StreamPending) and (excess := pending.item(message.item, frames, message.place)):
                self.broken(excess)
        elif isinstance(message, Progress) and (pending := self._pending.get(message.id)) is not None:
            pending.touch()

    def _state(self, message: Message) -> None:
        if isinstance(message, Welcome):
            self.welcome = True
            # The directory may tell of a new life later than that life does.
            self.generation = message.generation
            self._registration.cancel()
        elif isinstance(message, Refused) and message.before_hello:
            # The connection broke, and calls may have run on it. What was sent since, on another one, has reached nobody.
            self.lost("connection lost")
        elif isinstance(message, Refused):
            reason = message.reason
            self.break_off(lambda: Undeliverable(self.process, f"the connection was refused: {reason}"))
        elif isinstance(message, Goodbye):
            reason = message.reason
            self.break_off(lambda: ActorDied(self.process, reason))

    @property
    def admitted(self) -> bool:
        """Whether the peer has said welcome."""
        return self.welcome

    def broken(self, seen: str) -> None:
        """The peer sent what cannot be."""
        self.break_off(lambda: WireError(f"{self.process} sent {seen}"))

    def lost(self, cause: str) -> None:
        """The connection broke; whoever knows the process decides what to tell the callers."""
        self._link.close()
        self._lost(self, cause)

    def refused(self, cause: str) -> None:
        """The handshake failed: this process and the other one have no keys for each other."""
        self.break_off(lambda: Undeliverable(self.process, cause))

    def _unregistered(self) -> None:
        self.refused(f"no welcome within {WELCOME_SECONDS:g} s: {self._link.state}")

    def break_off(self, error: Callable[[], AsyncRLError], lost: bool = False) -> None:
        """Ends the connection: every call, stream and credit wait fails with its own copy of the error.

        ``lost`` when it broke, and the peer said nothing about the calls that are left.
        """
        if self.closed:
            return
        self.closed = True
        self._gone(self)
        self._registration.cancel()
        self._broken = error
        pending = list(self._pending.values())
        self._pending.clear()
        for each in pending:
            each.lost = lost
            each.fail(error())
        for window in self._windows.values():
            window.fail(error)
        # Without a welcome nobody may ever take what was sent.
        self._link.close(LINGER if self.welcome else 0.0)

    def leave(self, reason: str, error: Callable[[], AsyncRLError]) -> None:
        """Says goodbye and breaks off."""
        if not self.closed:
            self._link.send([ENCODER.encode(Goodbye(reason))])
            self.break_off(error)

    @property
    def unanswered(self) -> list[Any]:
        """The calls that the peer owes an answer."""
        return list(self._pending.values())
