"""What a process hears of the others from the directories that it has joined."""

import asyncio
import contextlib
import logging

from asyncrl.errors import ActorDied, ActorError, Undeliverable
from asyncrl.runtime.connections import Connections
from asyncrl.runtime.directory import Directory
from asyncrl.runtime.messages import ActorAddress
from asyncrl.runtime.ref import ActorRef
from asyncrl.runtime.retries import Retries
from asyncrl.runtime.tasks import Crew
from asyncrl.runtime.whereabouts import Whereabouts

logger = logging.getLogger(__name__)

JOIN_SECONDS = 1.0
"""How long a process waits for the first word of its directory: one whose loop is busy must not keep it from starting."""
FIND_SECONDS = 10.0
GONE_SECONDS = 5.0
"""How long a process waits for the word of a directory whose connection is lost."""
LONGEST_PAUSE = 10.0
"""Seconds between two tries to hear a directory again, at most."""


class Follower:
    """Keeps what a process knows in step with a directory, as long as that can be reached, and whenever it can be again.

    ``active`` says whether it can; ``ready`` is set when the first word has come, or none will soon; ``over`` when the directory
    has left for good.
    """

    def __init__(self, directory: ActorRef[Directory], connections: Connections) -> None:
        # It waits as long as nothing happens.
        self.directory = directory.with_deadline(0.0)
        self._connections = connections
        self._told: dict[str, None] = {}
        self._retries = Retries(LONGEST_PAUSE)
        self._missing: asyncio.TimerHandle | None = None
        self.active = True
        self.over = False
        self.ready = asyncio.Event()

    async def run(self) -> None:
        """Follows until the directory has left, is known to be dead, or this system is closed."""
        try:
            while await self._follow():
                await self._retries.pause()
        finally:
            self.over = True
            self._calm()
            self._gone()

    async def _follow(self) -> bool:
        """Returns whether it is worth another try: nobody has said that there will be nothing to hear."""
        try:
            async for news in self.directory.stream(Directory.watch):
                self._found()
                for each in news:
                    self._told[each.process] = None
                    self._connections.learn(each)
                self.ready.set()
        except ActorDied as error:
            self._miss(logging.INFO, error.cause)
            return error.lost
        except ActorError as error:
            # What stands in the way may go, as a network that breaks off handshakes does.
            self._miss(logging.WARNING, str(error))
            return True
        return False

    def _miss(self, level: int, cause: str) -> None:
        """A try ended. A directory that can be heard again soon was never gone."""
        if self.active and self._missing is None:
            logger.log(level, "the directory in %s cannot be heard: %s", self.directory.address.process, cause)
            self._missing = asyncio.get_running_loop().call_later(GONE_SECONDS, self._gone)

    def _found(self) -> None:
        if not self.active:
            logger.info("the directory in %s is heard again", self.directory.address.process)
        self.active = True
        self._retries.succeeded()
        self._calm()

    def _calm(self) -> None:
        if self._missing is not None:
            self._missing.cancel()
            self._missing = None

    def _gone(self) -> None:
        """Nobody waits any more for what the directory would say. What it says later is heard all the same."""
        self._missing = None
        self.active = False
        self.ready.set()
        cause = f"{self.directory.address.process}, which could tell of its restart, is gone"
        for known in [self._connections.known.get(process) for process in self._told]:
            if known is not None and known.state == "restarting":
                self._connections.learn(Whereabouts(known.process, known.generation, "dead", None, f"{known.cause}; {cause}"))


class Neighbours:
    """The directories that one process follows."""

    def __init__(self, connections: Connections) -> None:
        self._connections = connections
        self._followers: list[Follower] = []
        self._crew = Crew()

    @property
    def informed(self) -> bool:
        """Whether a directory can still be heard."""
        return any(follower.active for follower in self._followers)

    async def join(self, directory: ActorRef[Directory]) -> None:
        """Follows a directory. Returns when it has told what it knows, or after 1 s. Harmless when it is followed already."""
        self._followers = [each for each in self._followers if not each.over]
        if any(each.directory.address == directory.address for each in self._followers):
            return
        follower = Follower(directory, self._connections)
        self._followers.append(follower)
        self._crew.start(follower.run, name=f"directory in {directory.address.process}")
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(JOIN_SECONDS):
                await follower.ready.wait()

    async def find(self, actor: str) -> list[ActorAddress]:
        """Where the actors of this name are: one address for each process, of its latest life that is known."""
        found = self._connections.known.addresses(actor)
        for follower in [each for each in self._followers if each.active]:
            found += await follower.directory.with_deadline(FIND_SECONDS).call(Directory.find, actor)
        return list({address.process: address for address in sorted(found, key=lambda each: each.generation)}.values())

    async def the_one(self, actor: str, process: str) -> ActorAddress:
        """Where the only actor of this name is, of those in ``process`` unless that is "". Raises Undeliverable for none or several."""
        found = {each.process: each for each in await self.find(actor) if process in ("", each.process)}
        if len(found) != 1:
            where = f"in each of {', '.join(sorted(found))}; say in which" if found else "in no process that is known here"
            raise Undeliverable(actor, f"an actor of this name is {where}")
        return found.popitem()[1]

    async def close(self) -> None:
        """Follows nobody any more."""
        await self._crew.close(JOIN_SECONDS)
