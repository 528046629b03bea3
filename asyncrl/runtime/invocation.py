"""One call at its callee: decode, run, answer."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from asyncrl.errors import ActorDied
from asyncrl.runtime.actor import CURRENT_CALL
from asyncrl.runtime.effects import OperationKey
from asyncrl.runtime.failures import describe
from asyncrl.runtime.messages import Accepted, Call, Failure, Message, Progress, Reply, StreamEnd, StreamItem
from asyncrl.runtime.shapes import Buffer
from asyncrl.runtime.tasks import to_its_end
from asyncrl.runtime.waits import FOREVER

if TYPE_CHECKING:
    from asyncrl.runtime.host import Host
    from asyncrl.runtime.incoming import Incoming
    from asyncrl.runtime.mailbox import Mailbox
    from asyncrl.runtime.plan import EndpointPlan
    from asyncrl.runtime.waits import WaitRegistry


RETURN_SECONDS = 30.0
"""How long the caller of an idempotent call without a deadline may take to come again after its connection broke."""


class Invocation:
    """A call that was accepted. It is answered exactly once, unless its caller is gone."""

    __slots__ = (
        "_again",
        "_arrived",
        "_begun",
        "_cancelled",
        "_credit",
        "_last_progress",
        "_loop",
        "_method",
        "_more",
        "_patience",
        "call",
        "caller",
        "caller_role",
        "expires",
        "frames",
        "host",
        "incoming",
        "key",
        "label",
        "mailbox",
        "plan",
        "queued",
        "task",
        "trace",
        "waits",
    )

    def __init__(self, incoming: Incoming, mailbox: Mailbox, plan: EndpointPlan, call: Call, frames: Sequence[memoryview]) -> None:
        self.incoming, self.mailbox, self.plan, self.call, self.frames = incoming, mailbox, plan, call, frames
        self.host: Host = incoming.host
        self.waits: WaitRegistry = incoming.waits
        self.caller, self.caller_role, self.trace = incoming.process, incoming.role, call.trace
        self._arrived = self.host.clock()
        self.expires = self._arrived + call.deadline if call.deadline else None
        self.queued = False
        self.task: asyncio.Task[None] | None = None
        self.label = mailbox.labels[plan.name]
        self.key: OperationKey | None = None
        self._again: list[tuple[Incoming, int]] = []
        self._begun = self._cancelled = False
        self._patience: asyncio.TimerHandle | None = None
        self._loop = asyncio.get_running_loop()
        self._method: Callable[..., Any] = mailbox.methods[plan.name]
        self._credit = call.credit
        self._more: asyncio.Future[None] | None = None
        self._last_progress = 0.0

    async def run(self) -> None:
        """Serves the call; every way out answers it."""
        CURRENT_CALL.set(self)
        self._begun = True
        try:
            if self._cancelled:
                self._answer(describe(self.call.id, self._ended_error()))
                return
            if self.queued and self.expires is not None and self.host.clock() >= self.expires:
                # Its caller has given up while it waited; nobody wants the effect any more.
                self._answer(describe(self.call.id, TimeoutError("the deadline passed in the mailbox")))
                return
            args, kwargs = self.plan.arguments.decode(self.call.arguments, self.frames)
            self.frames = ()
            if self.plan.kind == "stream":
                await self._stream(args, kwargs)
            elif self.plan.kind == "async":
                self._reply(await self._method(*args, **kwargs))
            else:
                self._reply(await self._on_thread(args, kwargs))
        except asyncio.CancelledError:
            self._answer(describe(self.call.id, self._ended_error()), cancelled=True)
            raise
        except Exception as error:
            self._answer(describe(self.call.id, error))
        finally:
            # The task's context refers to this call: without a cycle both are gone at once, and with them what the call brought.
            self.task = None
            self.mailbox.ended(self)

    async def _on_thread(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        # A thread cannot be stopped: a cancelled call keeps its place in the actor until the function has returned.
        own = self.mailbox.thread
        return await to_its_end(lambda: (own.run if own is not None else self.host.run_blocking)(self._called, args, kwargs))

    def _called(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        try:
            return self._method(*args, **kwargs)
        except StopIteration as error:
            # No future can carry it: who waits for the thread would wait for ever.
            raise RuntimeError(f"{self.label} raised StopIteration") from error

    async def _stream(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        generator: AsyncGenerator[Any, None] = self._method(*args, **kwargs)
        made = 0
        try:
            async for item in generator:
                if self._credit <= 0:
                    await self._wait_for_credit()
                self._credit -= 1
                data, frames = self.plan.result.encode(item)
                self.incoming.send(StreamItem(self.call.id, msgspec.Raw(data), made), frames)
                made += 1
        finally:
            await generator.aclose()
        self._answer(StreamEnd(self.call.id, made))

    async def _wait_for_credit(self) -> None:
        self._more = self._loop.create_future()
        with self.waits.waiting(self.caller, f"credit for {self.label}", FOREVER):
            await self._more
        self._more = None

    def credit(self, items: int) -> None:
        """The consumer took ``items``."""
        self._credit += items
        if self._more is not None and not self._more.done() and self._credit > 0:
            self._more.set_result(None)

    def cancel(self) -> None:
        """The caller has left."""
        if self._cancelled:
            # What it does to end is not cut off by a second word of the same.
            return
        self._cancelled = True
        if self.task is None:
            self.mailbox.withdraw(self)
            self._answer(describe(self.call.id, self._ended_error()), cancelled=True)
        elif self._begun:
            # A task that is cancelled before its first step never runs, and could not answer: ``run`` sees to that one.
            self.task.cancel()

    def repeat(self, incoming: Incoming, number: int) -> None:
        """The same idempotent call came again, as ``number`` of another connection; it gets the same answer."""
        self._again.append((incoming, number))
        self._disarm()

    def disconnected(self) -> None:
        """A connection of this idempotent call broke. Without another one it goes on only as long as its caller may come again."""
        if self._patience is None and self.incoming.closed and all(incoming.closed for incoming, _ in self._again):
            seconds = RETURN_SECONDS if self.expires is None else self.expires - self.host.clock()
            self._patience = self._loop.call_later(max(0.0, seconds), self.cancel)

    def _disarm(self) -> None:
        if self._patience is not None:
            self._patience.cancel()
            self._patience = None

    def refuse_closed(self, cause: str) -> None:
        """Answers a call that never started."""
        self._answer(describe(self.call.id, ActorDied(self.mailbox.name, cause)))

    def abandon(self, cause: str) -> None:
        """Answers a call that does not end although its actor stops; what it returns one day is dropped."""
        self._disarm()
        message = describe(self.call.id, ActorDied(self.mailbox.name, cause))
        self.incoming.finished(self.call.id, message, ())
        self._answer_again(message, ())

    def progress(self) -> None:
        """See ``ActorContext.progress``; any thread."""
        silence = self.call.silence
        if not silence:
            return
        now = self.host.clock()
        if now - self._last_progress >= min(1.0, silence / 4):
            self._last_progress = now
            self._loop.call_soon_threadsafe(self._tell_progress)

    def _tell_progress(self) -> None:
        for incoming, number in [(self.incoming, self.call.id), *self._again]:
            incoming.send(Progress(number), ())

    def _ended_error(self) -> BaseException:
        if self.mailbox.closed:
            return ActorDied(self.mailbox.name, self.mailbox.closed)
        return asyncio.CancelledError("cancelled")

    def _reply(self, result: Any) -> None:
        if self.call.mode == "tell":
            self._answer(Accepted(self.call.id))
            return
        data, frames = self.plan.result.encode(result)
        self._answer(Reply(self.call.id, msgspec.Raw(data)), frames)

    def _answer(self, message: Message, frames: Sequence[Buffer] = (), cancelled: bool = False) -> None:
        self.incoming.finished(self.call.id, message, frames)
        self._measure(message.kind if isinstance(message, Failure) else "")
        if self.key is not None:
            self._disarm()
            self.mailbox.effects.ended(self.key, None if cancelled else message, frames)
            self._answer_again(message, frames)

    def _answer_again(self, message: Message, frames: Sequence[Buffer]) -> None:
        for incoming, number in self._again:
            incoming.finished(number, msgspec.structs.replace(message, id=number), frames)

    def _measure(self, failure: str) -> None:
        now = self.host.clock()
        seconds = now - self._arrived
        meter = self.mailbox.meters[self.plan.name]
        meter.record(seconds)
        if failure:
            meter.failures += 1
        events = self.incoming.events
        if events is not None:
            events.call(now, self.label, self.caller, seconds, self.trace, failure)
