"""One actor in its process: its instance, the calls that wait for it, and the calls that run."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from types import MethodType
from typing import TYPE_CHECKING, Any

from asyncrl.errors import WireError
from asyncrl.runtime.effects import Effects
from asyncrl.runtime.meters import Meter
from asyncrl.runtime.plan import EndpointPlan, endpoints_of, plan_of
from asyncrl.runtime.tasks import Crew, shielded, to_its_end

if TYPE_CHECKING:
    from asyncrl.runtime.actor import Actor, ActorContext
    from asyncrl.runtime.invocation import Invocation

logger = logging.getLogger(__name__)

STOP_SECONDS = 5.0
ANY = -1
"""As the next sequence number: whatever comes first."""


class Mailbox:
    """Starts calls in their order of arrival, ``concurrency`` at a time."""

    def __init__(self, name: str, instance: Actor) -> None:
        self.name = name
        self.instance = instance
        functions = endpoints_of(type(instance))
        self.plans: dict[str, EndpointPlan] = {key: plan_of(function) for key, function in functions.items()}
        self.methods: dict[str, Callable[..., Any]] = {key: MethodType(function, instance) for key, function in functions.items()}
        self.labels = {key: f"{name}.{key}" for key in functions}
        self.meters = {key: Meter() for key in functions}
        self.effects = Effects()
        self.thread = instance.context.host.own_thread(name) if type(instance).own_thread else None
        self.closed = ""
        self._limit = type(instance).concurrency
        self._queue: deque[Invocation] = deque()
        self._running: dict[Invocation, None] = {}
        self._crew = Crew()
        self._sequence = ANY

    def check_sequence(self, plan: EndpointPlan, sequence: int) -> None:
        """Collectives run in one order on all members. Raises WireError naming both numbers when this one is not next.

        An actor that was started anew begins where its group is. One that missed a call would enter its all-reduce while others
        are still in the one before, so it refuses.
        """
        if not plan.collective:
            if sequence >= 0:
                raise WireError(f"{plan.label} is not collective, yet it came with sequence number {sequence}")
            return
        if sequence < 0:
            raise WireError(f"{plan.label} is collective; call it through an ActorGroup")
        if self._sequence not in (sequence, ANY):
            numbers = f"collective {plan.label} has sequence number {sequence}, this member expects {self._sequence}"
            raise WireError(f"{self.name}: {numbers}: it missed a call, or served another group; start it anew")
        self._sequence = sequence + 1

    def submit(self, invocation: Invocation) -> None:
        """Starts a call, or queues it behind the others."""
        if self._limit and len(self._running) >= self._limit:
            invocation.queued = True
            self._queue.append(invocation)
        else:
            self._start(invocation)

    def withdraw(self, invocation: Invocation) -> None:
        """Takes a call out of the queue."""
        self._queue.remove(invocation)

    def _start(self, invocation: Invocation) -> None:
        self._running[invocation] = None
        invocation.task = self._crew.start(invocation.run, name=invocation.label)

    def ended(self, invocation: Invocation) -> None:
        """A call that ran has ended; the next one may start."""
        self._running.pop(invocation, None)
        if self._queue and not self.closed:
            self._start(self._queue.popleft())

    async def close(self, cause: str) -> None:
        """Answers the queued calls, cancels the running ones and the background functions, runs ``on_stop``; at most 5 s each.

        A call that does not end is answered all the same. A cancellation is raised when all that is done.
        """
        self.closed = cause
        while self._queue:
            self._queue.popleft().refuse_closed(cause)
        await to_its_end(lambda: self._stop(cause))

    async def _stop(self, cause: str) -> None:
        try:
            left = await self._crew.close(STOP_SECONDS)
            for invocation in self._running:
                invocation.abandon(cause)
            left += await self.instance.context.crew.close(STOP_SECONDS)
            if left:
                logger.warning("%s stops although %s would not end within %g s", self.name, ", ".join(left), STOP_SECONDS)
            async with shielded(STOP_SECONDS) as shield:
                if not await shield.run(self.instance.on_stop):
                    logger.warning("%s stops although its on_stop would not end within %g s", self.name, STOP_SECONDS)
        finally:
            if self.thread is not None:
                self.thread.close()

    @property
    def depth(self) -> int:
        """Calls that wait."""
        return len(self._queue)


async def started(cls: type[Actor], context: ActorContext, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Mailbox:
    """Builds an actor and runs its ``on_start``, whose errors are raised. What a failed start has begun in the background ends with it."""
    try:
        instance = cls.__new__(cls)
        instance.context = context
        type(instance).__init__(instance, *args, **kwargs)
        mailbox = Mailbox(context.name, instance)
        await instance.on_start()
    except BaseException:
        await to_its_end(lambda: context.crew.close(STOP_SECONDS))
        raise
    return mailbox
