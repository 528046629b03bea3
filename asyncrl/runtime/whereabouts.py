"""What is known of the processes of a job: which life of a name is the present one, and where it listens."""

import asyncio
from typing import Literal

import msgspec

from asyncrl.runtime.messages import ActorAddress, Name

State = Literal["up", "restarting", "dead"]
ORDER: dict[State, int] = {"up": 0, "restarting": 1, "dead": 2}


class Whereabouts(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One process: its latest ``generation`` and what became of it.

    ``restarting`` is between two lives, ``dead`` is for good. ``address`` is that of the process's actor in this life, None
    where nobody has told it; ``cause`` says why it is not up; ``replaceable`` that a lost life is followed by another.
    """

    process: Name
    generation: int
    state: State
    address: ActorAddress | None = None
    cause: str = ""
    replaceable: bool = False

    @property
    def rank(self) -> tuple[int, int]:
        """News of a higher rank replace this."""
        return self.generation, ORDER[self.state]

    @property
    def oldest_admitted(self) -> int:
        """The lowest generation that may still speak."""
        return self.generation if self.state == "up" else self.generation + 1

    def ends_wait_after(self, generation: int) -> bool:
        """Whether this is a later life than ``generation``, or the word that there will be none."""
        return self.generation > generation if self.state == "up" else self.state == "dead" and self.generation >= generation


def up(address: ActorAddress, replaceable: bool = False) -> Whereabouts:
    """A process that serves at ``address``."""
    return Whereabouts(address.process, address.generation, "up", address, replaceable=replaceable)


class KnownProcesses:
    """The latest word on each process. News may come twice, late and in any order: the highest rank wins."""

    def __init__(self) -> None:
        self._latest: dict[str, Whereabouts] = {}
        self._waiters: dict[str, list[asyncio.Future[None]]] = {}
        self._watchers: list[Changes] = []

    def get(self, process: str) -> Whereabouts | None:
        """The latest word on a process; None when there was none."""
        return self._latest.get(process)

    def all(self) -> list[Whereabouts]:
        """Every process, in the order in which they were first heard of."""
        return list(self._latest.values())

    def addresses(self, actor: str) -> list[ActorAddress]:
        """Where the actors of this name are, of the processes that are not dead."""
        found = [each.address for each in self._latest.values() if each.state != "dead"]
        return [address for address in found if address is not None and address.actor == actor]

    def learn(self, news: Whereabouts) -> bool:
        """Takes over what is new; returns whether it was."""
        latest = self._latest.get(news.process)
        if latest is not None and latest.rank >= news.rank:
            return False
        if news.address is None and latest is not None:
            news = msgspec.structs.replace(news, address=latest.address)
        self._latest[news.process] = news
        for watcher in self._watchers:
            watcher.add(news)
        self.wake(news.process)
        return True

    def wake(self, process: str) -> None:
        """Lets those who wait for a process look again."""
        for waiter in self._waiters.pop(process, []):
            if not waiter.done():
                waiter.set_result(None)

    async def change(self, process: str) -> None:
        """Returns when there is reason to look again at a process. The caller bounds it."""
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        waiting = self._waiters.setdefault(process, [])
        waiting.append(waiter)
        try:
            await waiter
        finally:
            if waiter in waiting:
                waiting.remove(waiter)
            if not waiting and self._waiters.get(process) is waiting:
                del self._waiters[process]

    async def after(self, process: str, generation: int) -> Whereabouts:
        """The first life after ``generation`` that is up, or the word that there will be none. The caller bounds it."""
        while True:
            latest = self._latest.get(process)
            if latest is not None and latest.ends_wait_after(generation):
                return latest
            await self.change(process)

    def changes(self) -> "Changes":
        """What changes from now on, until it is closed."""
        watcher = Changes(self)
        self._watchers.append(watcher)
        return watcher

    def leave(self, watcher: "Changes") -> None:
        """A watcher has had enough."""
        self._watchers.remove(watcher)


class Changes:
    """News for one watcher. It holds the latest word on each process only, however slowly it is read."""

    def __init__(self, known: KnownProcesses) -> None:
        self._known = known
        self._news: dict[str, Whereabouts] = {}
        self._some = asyncio.Event()

    def add(self, news: Whereabouts) -> None:
        """One process has changed."""
        self._news[news.process] = news
        self._some.set()

    async def next(self) -> list[Whereabouts]:
        """What has changed since the last call; waits for something."""
        await self._some.wait()
        self._some.clear()
        news = list(self._news.values())
        self._news.clear()
        return news

    def close(self) -> None:
        """Ends the watch."""
        self._known.leave(self)
