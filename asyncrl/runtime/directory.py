"""The directory of a job: which life of each process is the present one, told to everybody as it changes."""

from collections.abc import AsyncIterator, Callable
from typing import ClassVar

from asyncrl.runtime.actor import Actor, endpoint
from asyncrl.runtime.messages import ActorAddress
from asyncrl.runtime.whereabouts import KnownProcesses, Whereabouts

DIRECTORY = "asyncrl.directory"
"""Name of the directory among the actors of its process."""


class Directory(Actor):
    """What the process that owns a supervisor knows, for those that do not."""

    concurrency: ClassVar[int] = 0

    def __init__(self, known: KnownProcesses, own: Callable[[str], list[ActorAddress]]) -> None:
        self._known, self._own = known, own

    @endpoint
    async def watch(self) -> AsyncIterator[list[Whereabouts]]:
        """All processes at once, then every change. A slow reader misses states in between, never the latest."""
        changes = self._known.changes()
        try:
            yield self._known.all()
            while True:
                yield await changes.next()
        finally:
            changes.close()

    @endpoint
    async def after(self, process: str, generation: int) -> Whereabouts:
        """The first life after ``generation`` that is up, or the word that there will be none; waits for it."""
        return await self._known.after(process, generation)

    @endpoint
    async def find(self, actor: str) -> list[ActorAddress]:
        """Where actors of this name are: in this process, and in those that it knows."""
        return self._own(actor) + self._known.addresses(actor)
