"""What a process hears of the others from the directories that it has joined."""

import asyncio
import contextlib
import logging

from asyncrl.errors import ActorDied, ActorError, Undeliverable
from asyncrl.runtime.connections import Connections
from asyncrl.runtime.directory import Directory
from asyncrl.runtime.messages import ActorAddress
from asyncrl.runtime.ref import ActorRef
from asyncrl.runtime.tasks import Crew
from asyncrl.runtime.whereabouts import Whereabouts

logger = logging.getLogger(__name__)

JOIN_SECONDS = 1.0
"""How long a process waits for the first word of its directory: one whose loop is busy must not keep it from starting."""
FIND_SECONDS = 10.0


class Follower:
    """Keeps what a process knows in step with a directory, as long as that can be reached.

    ``active`` says whether it can; ``ready`` is set when the first word has come, or none will.
    """

    def __init__(self, directory: ActorRef[Directory], connections: Connections) -> None:
        # It waits as long as nothing happens.
        self.directory = directory.with_deadline(0.0)
        self._connections = connections
        self._told: dict[str, None] = {}
        self.active = True
        self.ready = asyncio.Event()

    async def run(self) -> None:
        """Follows until the directory has left. One whose connection breaks is tried again."""
        try:
            while await self._follow():
                pass
        finally:
            self.active = False
            self.ready.set()
            cause = f"{self.directory.address.process}, which could tell of its restart, is gone"
            for known in [self._connections.known.get(process) for process in self._told]:
                if known is not None and known.state == "restarting":
                    self._connections.learn(Whereabouts(known.process, known.generation, "dead", None, f"{known.cause}; {cause}"))

    async def _follow(self) -> bool:
        """Returns whether it is worth another try: something was told before the end."""
        told = False
        try:
            async for news in self.directory.stream(Directory.watch):
                told = True
                for each in news:
                    self._told[each.process] = None
                    self._connections.learn(each)
                self.ready.set()
        except ActorDied as error:
            logger.info("the directory in %s cannot be heard: %s", self.directory.address.process, error.cause)
            return told
        except ActorError as error:
            logger.warning("the directory in %s does not answer: %s", self.directory.address.process, error)
        return False


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
        if any(each.active and each.directory.address == directory.address for each in self._followers):
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
