"""References to actors: typed calls, tells and streams."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Sequence
from typing import Any, Concatenate, Generic, Literal, ParamSpec, Protocol, TypeVar, overload

import msgspec

from asyncrl.errors import ActorDied, CallTimedOut
from asyncrl.runtime.deadlines import Deadlines
from asyncrl.runtime.messages import ActorAddress, Call, check_name
from asyncrl.runtime.meters import Meters
from asyncrl.runtime.outgoing import Outgoing
from asyncrl.runtime.pending import Limit, Pending, StreamPending, TellPending
from asyncrl.runtime.plan import EndpointPlan, plan_of
from asyncrl.runtime.shapes import Buffer
from asyncrl.runtime.waits import FOREVER, Wait, WaitRegistry

A = TypeVar("A")
R = TypeVar("R")
P = ParamSpec("P")
Waiting = TypeVar("Waiting", bound=Pending)
Mode = Literal["call", "tell", "stream"]

STREAM_CREDIT = 16
"""Items of a stream that may be in flight."""
TRIES = 3
"""How often an idempotent call is sent before a lost connection is its end."""


class Caller(Protocol):
    """What a reference needs of its system."""

    waits: WaitRegistry
    deadlines: Deadlines
    meters: Meters

    def trace(self) -> str:
        """The trace id for a call that is made now."""
        ...

    def operation(self) -> int:
        """A number that no other idempotent call of this process has."""
        ...

    def outgoing(self, address: ActorAddress) -> Outgoing | None:
        """The connection to the process of an address; None while it is restarted. Raises ActorDied for one that is known to be gone."""
        ...

    async def reach(self, address: ActorAddress) -> Outgoing:
        """The connection to the process of an address, once that is there. The caller bounds it."""
        ...

    def collective_number(self, members: tuple[ActorAddress, ...]) -> int:
        """The next sequence number of a group of actors."""
        ...


class ActorRef(Generic[A]):
    """A reference to one actor. Calls raise ActorDied, CallTimedOut, CallFailed, Undeliverable, WireError, or the
    error of our own tree that the endpoint raised."""

    __slots__ = ("_budget", "_caller", "_limit", "_who", "address")

    def __init__(self, caller: Caller, address: ActorAddress, limit: Limit | None = None) -> None:
        check_name("the name of an actor", address.actor)
        check_name("the name of a process", address.process)
        self._caller, self.address, self._limit = caller, address, limit or Limit()
        self._who = f"{address.actor}@{address.process}"
        self._budget = self._limit.deadline or self._limit.silence or FOREVER

    def __repr__(self) -> str:
        return f"ActorRef({self.address.actor!r} in {self.address.process!r})"

    @property
    def caller(self) -> Caller:
        """The system that this reference calls from."""
        return self._caller

    @property
    def deadline(self) -> float:
        """Seconds after which a call fails with CallTimedOut, 0.0 without such a limit."""
        return self._limit.deadline

    @overload
    async def call(self, method: Callable[Concatenate[A, P], Awaitable[R]], *args: P.args, **kwargs: P.kwargs) -> R: ...
    @overload
    async def call(self, method: Callable[Concatenate[A, P], R], *args: P.args, **kwargs: P.kwargs) -> R: ...
    def call(self, method: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Calls an endpoint and waits for its result. Leaving early cancels the callee.

        A call runs at most once. One whose endpoint is ``idempotent`` is sent again when its connection breaks, at most
        three times within its deadline; the callee answers the same call from its records, where it has kept the answer.
        """
        return self.numbered_call(-1, method, *args, **kwargs)

    async def numbered_call(self, sequence: int, method: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """A call with the sequence number of its group, -1 outside collectives."""
        plan = plan_of(method)
        data, frames = plan.arguments.encode(args, kwargs)
        if plan.idempotent:
            return await self._repeated(plan, data, frames)
        outgoing, limit = self._credit(plan) or await self._wait_for_credit(plan)
        pending = self._pending(Pending, plan, outgoing, limit)
        number = outgoing.number()
        failed = True
        pending.wait = wait = self._caller.waits.enter(self._who, plan.label, self._budget)
        try:
            outgoing.call(self._envelope(number, plan, "call", data, sequence), frames, pending)
            pending.arm()
            result = await pending.future
            failed = False
            return result
        finally:
            self._ended(plan, pending, wait, failed)
            if not pending.answered:
                outgoing.cancel(number)
            # It holds the error, whose traceback holds this frame: a cycle, and what was sent would stay with it.
            del pending

    async def _repeated(self, plan: EndpointPlan, data: bytes, frames: Sequence[Buffer]) -> Any:
        operation, loop = self._caller.operation(), asyncio.get_running_loop()
        end = loop.time() + self._limit.deadline if self._limit.deadline else None
        for tried in range(1, TRIES + 1):
            # The time of all tries together is the call's.
            again = self if end is None or tried == 1 else self.with_deadline(max(0.001, end - loop.time()))
            pending: Pending | None = None
            try:
                outgoing, limit = again._credit(plan) or await again._wait_for_credit(plan)
                pending = again._pending(Pending, plan, outgoing, limit)
                if tried > 1:
                    pending.what = f"{plan.label} (sent {tried} times)"
                return await again._once(plan, data, frames, operation, outgoing, pending)
            except CallTimedOut as error:
                raise CallTimedOut(error.who, error.what, self._limit.deadline or error.seconds) from None
            except ActorDied:
                if tried == TRIES or pending is None or not pending.lost or (end is not None and loop.time() >= end):
                    raise
            finally:
                pending = None
        raise AssertionError("the last try returns or raises")

    async def _once(
        self, plan: EndpointPlan, data: bytes, frames: Sequence[Buffer], operation: int, outgoing: Outgoing, pending: Pending
    ) -> Any:
        number = outgoing.number()
        failed = True
        pending.wait = wait = self._caller.waits.enter(self._who, pending.what, self._budget)
        try:
            outgoing.call(self._envelope(number, plan, "call", data, -1, operation), frames, pending)
            pending.arm()
            result = await pending.future
            failed = False
            return result
        finally:
            self._ended(plan, pending, wait, failed)
            if not pending.answered:
                outgoing.cancel(number)
            # It holds the error, whose traceback holds this frame: a cycle, and what was sent would stay with it.
            del pending

    def _ended(self, plan: EndpointPlan, pending: Pending, wait: Wait, failed: bool) -> None:
        pending.disarm()
        meter = self._caller.meters.of(plan.label)
        meter.record(self._caller.waits.leave(wait))
        if failed:
            meter.failures += 1

    async def tell(self, method: Callable[Concatenate[A, P], Any], *args: P.args, **kwargs: P.kwargs) -> None:
        """Sends without waiting for a result; returns when the actor's credit admits it. A failure is only logged."""
        plan = plan_of(method)
        data, frames = plan.arguments.encode(args, kwargs)
        outgoing, _ = self._credit(plan) or await self._wait_for_credit(plan)
        pending = self._pending(TellPending, plan, outgoing, self._limit)
        outgoing.call(self._envelope(outgoing.number(), plan, "tell", data, -1), frames, pending)

    def stream(self, method: Callable[Concatenate[A, P], AsyncIterator[R]], *args: P.args, **kwargs: P.kwargs) -> AsyncGenerator[R, None]:
        """Items of an endpoint that is an async generator.

        At most 16 items are in flight: the consumer's pace bounds the producer. Leaving early cancels the producer; use
        ``contextlib.aclosing`` where that must not wait for garbage collection. The deadline, or the silence, holds for
        each item, while the consumer waits for it.
        """
        return self._items(plan_of(method), args, kwargs)

    async def _items(self, plan: EndpointPlan, args: tuple[Any, ...], kwargs: dict[str, Any]) -> AsyncGenerator[Any, None]:
        data, frames = plan.arguments.encode(args, kwargs)
        outgoing, _ = self._credit(plan) or await self._wait_for_credit(plan)
        pending = self._pending(StreamPending, plan, outgoing, self._limit)
        number = outgoing.number()
        pending.granted = STREAM_CREDIT
        taken = 0
        try:
            outgoing.call(self._envelope(number, plan, "stream", data, -1), frames, pending)
            while True:
                with self._caller.waits.waiting(self._who, f"an item of {plan.label}", self._budget) as pending.wait:
                    more, item = await pending.next()
                if not more:
                    return
                yield item
                taken += 1
                if taken >= STREAM_CREDIT // 2:
                    pending.granted += taken
                    outgoing.credit(number, taken)
                    taken = 0
        finally:
            if not pending.answered:
                outgoing.cancel(number)

    def _credit(self, plan: EndpointPlan) -> tuple[Outgoing, Limit] | None:
        """The connection, with one credit taken, and the call's limit; None when there is none to take at once.

        Raises CallTimedOut for a deadline that has passed.
        """
        if self._limit.deadline < 0:
            raise CallTimedOut(self._who, f"{plan.label} (its deadline had passed, it was not sent)", self._limit.deadline)
        outgoing = self._caller.outgoing(self.address)
        if outgoing is None:
            return None
        window = outgoing.window(self.address.actor)
        if not window.free or window.waiters:
            return None
        window.free -= 1
        return outgoing, self._limit

    async def _wait_for_credit(self, plan: EndpointPlan) -> tuple[Outgoing, Limit]:
        """As ``_credit``, once there is some; the limit is what is left of the call's. Waits for a restart of the process too."""
        loop, limit = asyncio.get_running_loop(), self._limit
        begun = loop.time()
        what = f"{plan.label} (in its restart)"
        try:
            async with asyncio.timeout(limit.deadline or limit.silence or None) as scope:
                outgoing = await self._caller.reach(self.address)
                what = f"credit for {plan.label}"
                if not limit.deadline:
                    scope.reschedule(None)
                # A watched one may wait as long as the actor gives signs of life.
                silence = 0.0 if limit.deadline else limit.silence
                with self._caller.waits.waiting(self._who, what, FOREVER if silence else limit.deadline):
                    if not await outgoing.window(self.address.actor).acquire(silence):
                        raise CallTimedOut(self._who, f"{what} (no sign of progress)", silence)
        except TimeoutError:
            if not scope.expired():
                raise
            raise CallTimedOut(self._who, what, limit.deadline or limit.silence) from None
        if limit.deadline:
            limit = Limit(max(0.001, limit.deadline - (loop.time() - begun)), limit.silence)
        return outgoing, limit

    def _pending(self, kind: type[Waiting], plan: EndpointPlan, outgoing: Outgoing, limit: Limit) -> Waiting:
        return kind(self._who, plan.label, plan.result, outgoing.window(self.address.actor), limit, self._caller.deadlines)

    def _envelope(self, number: int, plan: EndpointPlan, mode: Mode, data: bytes, sequence: int, operation: int = 0) -> Call:
        limit, trace = self._limit, self._caller.trace()
        deadline = 0.0 if limit.silence or mode != "call" else limit.deadline
        credit = STREAM_CREDIT if mode == "stream" else 0
        raw = msgspec.Raw(data)
        return Call(number, self.address.actor, plan.name, mode, deadline, limit.silence, credit, sequence, operation, trace, raw)

    def with_deadline(self, seconds: float) -> ActorRef[A]:
        """The same actor; calls fail with CallTimedOut after ``seconds``, 0.0 for never.

        Less than 0 is what is left of a time that is over: calls fail at once, and are not sent. Raises ValueError for nan.
        """
        if math.isnan(seconds):
            raise ValueError(f"a deadline is a number of seconds, got {seconds}")
        return ActorRef(self._caller, self.address, Limit(deadline=seconds))

    def watched(self, silence: float) -> ActorRef[A]:
        """The same actor without a clock deadline: calls fail after ``silence`` seconds without progress or item.

        Raises ValueError for a silence that is not above 0.
        """
        if not silence > 0:
            raise ValueError(f"a silence is a number of seconds above 0, got {silence}")
        return ActorRef(self._caller, self.address, Limit(deadline=0.0, silence=silence))
