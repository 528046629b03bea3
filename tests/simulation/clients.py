"""Clients: what the callers of a simulated run do, drawn from its seed."""

import asyncio
import math
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from random import Random
from typing import Any

from asyncrl.errors import AsyncRLError
from asyncrl.runtime import ActorGroup, ActorRef
from tests.simulation.journal import Operation
from tests.simulation.workers import Member, Worker
from tests.simulation.world import Life, World

Act = Callable[[], Awaitable[Any]]

KINDS = {
    "apply": 30, "tell": 16, "compute": 8, "once": 10, "steps": 6, "items": 8, "hold": 6, "refuse": 5, "relay": 5, "group": 3,
    "together": 3,
}  # fmt: skip
"""What clients ask for, and how often."""


def spread(random: Random, low: float, high: float) -> float:
    """A number between both whose logarithm is uniform."""
    return math.exp(random.uniform(math.log(low), math.log(high)))


class Client:
    """A caller in the process of ``life``: turns of one or several operations at a time, each of which may be cancelled."""

    def __init__(self, world: World, life: Life, random: Random) -> None:
        self.world, self.life, self.random = world, life, random
        self.journal = world.journal

    async def run(self, operations: int, pause: float) -> None:
        """Makes this many operations, with pauses of about ``pause`` seconds."""
        while operations > 0:
            await asyncio.sleep(self.random.expovariate(1 / pause))
            burst = min(operations, self.random.choice([1, 1, 1, 2, 5, 12]))
            operations -= burst
            place = self._place() if self.random.random() < 0.5 else None
            tasks = [asyncio.ensure_future(self._one(place or self._place())) for _ in range(burst)]
            for task in tasks:
                self._perhaps_cancel(task)
            await asyncio.wait(tasks)
            for task in tasks:
                if not task.cancelled() and (error := task.exception()) is not None:
                    raise error

    def _perhaps_cancel(self, task: asyncio.Task[None]) -> None:
        """After some time, or in the very turn in which a message arrives, which is when races are."""
        drawn = self.random.random()
        if drawn < 0.1:
            asyncio.get_running_loop().call_later(spread(self.random, 1e-4, 2.0), task.cancel)
        elif drawn < 0.25:
            self.world.at_delivery(self.life.node, self.random.randint(1, 8), task.cancel)

    def _place(self) -> tuple[Life, str]:
        """A process, now and then one that is over, and an actor in it."""
        lives = self.world.lives if self.random.random() < 0.05 else self.world.living or self.world.lives
        return self.random.choice(lives), self.random.choice(["wide", "worker"])

    async def _one(self, place: tuple[Life, str]) -> None:
        kind = self.random.choices(list(KINDS), list(KINDS.values()))[0]
        limit = spread(self.random, 0.02, 8.0)
        if kind in ("group", "together"):
            await self._group(kind, limit)
            return
        target, actor = place[0], "wide" if kind == "hold" else place[1]
        operation = self.begin(kind, target, actor, limit)
        ref: ActorRef[Worker] = self.life.system.ref(target.addresses[actor], Worker).with_deadline(limit)
        await self.watch([operation], lambda: self._act(kind, operation, ref, limit))

    def begin(self, kind: str, target: Life, actor: str, limit: float) -> Operation:
        """An operation of this client."""
        return self.journal.begin(kind, self.life.node, target.node, actor, limit)

    async def watch(self, operations: list[Operation], act: Act) -> None:
        """Runs ``act`` and writes how it ended. Only errors of our own tree are expected."""
        outcome, result = "", None
        failure: Exception | None = None
        try:
            result = await act()
            outcome = "result"
        except asyncio.CancelledError:
            outcome = "cancelled"
            raise
        except AsyncRLError as error:
            outcome, failure = "error", error
        except Exception as error:
            outcome, failure = "error", error
            self.journal.problems.append(f"operation {operations[0].number} ({operations[0].kind}) raised {error!r}")
        finally:
            for place, operation in enumerate(operations):
                operation.end = asyncio.get_running_loop().time()
                operation.outcome, operation.error = outcome, failure
                operation.result = result[place] if isinstance(result, list) and operation.actor == "member" else result

    async def _act(self, kind: str, operation: Operation, ref: ActorRef[Worker], limit: float) -> Any:
        random, number = self.random, operation.number
        before, after = (random.choice([0.0, spread(random, 1e-4, 0.3)]) for _ in range(2))
        if kind == "apply":
            return await ref.call(Worker.apply, number, before, after)
        if kind == "tell":
            return await ref.tell(Worker.apply, number, before, after)
        if kind == "compute":
            return await ref.call(Worker.compute, number)
        if kind == "once":
            return await ref.call(Worker.once, number, before, after)
        if kind == "steps":
            pauses = [spread(random, 1e-3, 0.5) for _ in range(random.randint(0, 6))]
            return await ref.watched(spread(random, 0.1, 4.0)).call(Worker.steps, number, pauses)
        if kind == "items":
            return await self._stream(ref, number)
        if kind == "hold":
            return await ref.with_deadline(min(limit, 1.0)).call(Worker.hold, number)
        if kind == "refuse":
            return await ref.call(Worker.refuse, number, random.random() < 0.5)
        inner_life = random.choice(self.world.lives)
        inner = self.journal.begin("inner", operation.target, inner_life.node, "wide", 2.0)
        inner.outcome = "unknown"
        return await ref.call(Worker.relay, number, inner_life.addresses["wide"], inner.number)

    async def _stream(self, ref: ActorRef[Worker], number: int) -> list[int]:
        count, leave = self.random.choice([0, 3, 20, 60]), self.random.choice([None, None, 2, 18])
        seen: list[int] = []
        async with aclosing(ref.stream(Worker.items, number, count, self.random.choice([0.0, 0.0, 0.01]))) as items:
            async for item in items:
                if item != len(seen):
                    self.journal.problems.append(f"stream {number} yields {item} after {seen[-1:]}")
                seen.append(item)
                if len(seen) == leave:
                    return seen
        if len(seen) != count:
            self.journal.problems.append(f"stream {number} ends after {len(seen)} of {count} items")
        return seen

    async def _group(self, kind: str, limit: float) -> None:
        lives = self.world.current
        if not lives:
            return
        members = lives if kind == "together" else self.random.sample(lives, self.random.randint(1, len(lives)))
        group: ActorGroup[Member] = ActorGroup([self.life.system.ref(life.addresses["member"], Member) for life in members])
        operations = [self.begin(kind, life, "member", limit) for life in members]
        numbers = [operation.number for operation in operations]
        if kind == "together":
            arguments: list[tuple[Any, ...]] = [(number, numbers[0]) for number in numbers]
            await self.watch(operations, lambda: group.with_deadline(limit).call_each(Member.together, arguments))
        else:
            arguments = [(number, 0.0, 0.0) for number in numbers]
            await self.watch(operations, lambda: group.with_deadline(limit).call_each(Member.apply, arguments))
