"""The actors of simulated runs. They write what they do into the journal of the run."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AbstractContextManager

from asyncrl.errors import Fenced
from asyncrl.runtime import Actor, ActorAddress, endpoint
from tests.simulation.journal import Journal


class Worker(Actor):
    """Counts what was applied, one call at a time."""

    def __init__(self, journal: Journal, node: str) -> None:
        self.journal, self.node = journal, node
        self.total = 0

    def _apply(self, operation: int) -> int:
        self.total += 1
        return self.journal.apply(operation, self.node, self.context.name, self.total)

    def serving(self, operation: int) -> AbstractContextManager[None]:
        """Around every endpoint."""
        return self.journal.serving(self.node, self.context.name, operation, self.concurrency == 1)

    @endpoint
    async def apply(self, operation: int, before: float, after: float) -> int:
        with self.serving(operation):
            await asyncio.sleep(before)
            value = self._apply(operation)
            await asyncio.sleep(after)
            return value

    @endpoint
    def compute(self, operation: int) -> int:
        with self.serving(operation):
            self.context.progress()
            return self._apply(operation)

    @endpoint(idempotent=True)
    async def once(self, operation: int, before: float, after: float) -> int:
        with self.serving(operation):
            await asyncio.sleep(before)
            value = self._apply(operation)
            await asyncio.sleep(after)
            return value

    @endpoint
    async def steps(self, operation: int, pauses: list[float]) -> int:
        with self.serving(operation):
            for pause in pauses:
                await asyncio.sleep(pause)
                self.context.progress()
            return self._apply(operation)

    @endpoint
    async def items(self, operation: int, count: int, pause: float) -> AsyncIterator[int]:
        with self.serving(operation):
            self._apply(operation)
            for number in range(count):
                if pause:
                    await asyncio.sleep(pause)
                yield number

    @endpoint
    async def hold(self, operation: int) -> int:
        with self.serving(operation):
            await self.journal.gate.wait()
            return self._apply(operation)

    @endpoint
    async def refuse(self, operation: int, fenced: bool) -> int:
        with self.serving(operation):
            self._apply(operation)
            if fenced:
                raise Fenced("key", "1", str(operation))
            raise LookupError(str(operation))

    @endpoint
    async def relay(self, operation: int, address: ActorAddress, inner: int) -> int:
        """Calls another actor on the way."""
        with self.serving(operation):
            await self.context.system.ref(address, Worker).with_deadline(2.0).call(Worker.apply, inner, 0.0, 0.0)
            return self._apply(operation)


class Wide(Worker):
    """Runs any number of calls at a time."""

    concurrency = 0


class Member(Worker):
    """A member of a group whose collectives run in one order."""

    @endpoint(collective=True)
    async def together(self, operation: int, place: int) -> int:
        with self.serving(operation):
            self.journal.collectives.setdefault(f"{self.context.name}@{self.node}", []).append(place)
            await asyncio.sleep(0)
            return self._apply(operation)
