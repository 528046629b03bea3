"""What any process of a job may ask another about itself; every actor system has one of these."""

from __future__ import annotations

from collections.abc import Callable

from asyncrl.runtime.actor import Actor, endpoint
from asyncrl.runtime.records import Stats

INSPECTOR = "asyncrl.inspector"
"""Name of the actor."""


class Inspector(Actor):
    """Answers at once, as long as the event loop turns."""

    concurrency = 0

    def __init__(self, stacks: Callable[[], str], stats: Callable[[], Stats]) -> None:
        self._stacks, self._stats = stacks, stats

    @endpoint
    async def stacks(self) -> str:
        """Where the threads and tasks of this process are."""
        return self._stacks()

    @endpoint
    async def waits(self) -> list[str]:
        """What this process waits for, the oldest first."""
        return self.context.system.waits.describe()

    @endpoint
    async def stats(self) -> Stats:
        """Its counters and queues."""
        return self._stats()
