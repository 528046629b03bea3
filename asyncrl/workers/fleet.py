"""The engines in processes of their own, as the controller sees them: all hold the version that was published last."""

import asyncio
import logging
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from typing import Any

from asyncrl.errors import ActorDied, TransferInterrupted, Undeliverable, WeightSyncError
from asyncrl.runtime.actor import Actor, endpoint
from asyncrl.runtime.curve import CONTROLLER
from asyncrl.runtime.directory import Directory
from asyncrl.runtime.messages import ActorAddress
from asyncrl.runtime.ref import ActorRef
from asyncrl.runtime.tasks import running
from asyncrl.workers.engine_process import EngineProcess, Held
from asyncrl.workers.weights import WeightSender

logger = logging.getLogger(__name__)

TRIES = 4
"""How often a version is sent to an engine: once, and again after each death that its restarts allow."""
NOTICE_SECONDS = 1.0
"""How long word of an engine's death may take after its connection has broken."""


@dataclass(slots=True, eq=False)
class Member:
    """An engine and the trainer rank that sends to it; ``down`` from its death until its next life."""

    engine: ActorRef[EngineProcess]
    sender: ActorRef[WeightSender]
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    down: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def name(self) -> str:
        """The engine's process."""
        return self.engine.address.process


class EngineFleet(Actor):
    """Brings each published version to one engine after another, and to an engine that begins a new life at once.

    References must be bounded by silence, not by the clock. ``say`` is told in a line when an engine serves again.
    """

    concurrency = 0

    def __init__(self, members: Sequence[Member], say: Callable[[str], None]) -> None:
        self._members = {member.name: member for member in members}
        self._lives = {name: member.engine.address.generation for name, member in self._members.items()}
        self._say = say
        self._published: Held | None = None

    async def on_start(self) -> None:
        directory = self.context.system.directory
        if directory is not None:
            self.context.background(self._follow, directory, name="lives of the engines")

    @endpoint(roles=(CONTROLLER,))
    async def publish(self, version: int, digest: str) -> None:
        """Bring ``version`` to every engine, one after another; returns when all that live, at least one, generate with it.

        The senders must hold it already. An engine that is down, or dies meanwhile, is given it in its next life, which is waited
        for only when there is no other. Raises WeightSyncError for an engine that cannot take it, TransferInterrupted when it has
        not arrived after ``TRIES`` tries.
        """
        self._published = wanted = Held(version, digest)
        serves, members = False, list(self._members.values())
        for member in members:
            if not member.down.is_set():
                serves = await self._bring(member, wanted, needed=False) or serves
                self.context.progress()
        if not serves:
            await self._bring(members[0], wanted)

    @endpoint(roles=(CONTROLLER,))
    async def down(self, process: str) -> None:
        """Return as soon as the engine of this process is down: from its death until its next life."""
        await self._members[process].down.wait()

    async def _follow(self, directory: ActorAddress) -> None:
        """Hear of each new life of an engine.

        consumes: the directory's news of processes
        produces: a ``_revive`` for each life but the first
        waits for: news
        unblocked by: the supervisor, through the directory
        """
        # It waits as long as nothing happens.
        stream = self.context.system.ref(directory, Directory).with_deadline(0.0).stream(Directory.watch)
        async for news in stream:
            for each in news:
                member = self._members.get(each.process)
                if member is None:
                    continue
                if each.state != "up":
                    member.down.set()
                elif each.generation > self._lives[each.process]:
                    self._lives[each.process] = each.generation
                    member.down.clear()
                    self.context.background(self._revive, member, name=f"weights for {each.process}")

    async def _revive(self, member: Member) -> None:
        """Give an engine that was started again what the others have; until then it takes requests and answers none."""
        began, wanted = self.context.host.clock(), self._published
        if wanted is not None:
            await self._bring(member, wanted)
            self._say(f"{member.name} serves again, with version {wanted.version} after {self.context.host.clock() - began:.1f} s")

    async def _bring(self, member: Member, wanted: Held, needed: bool = True) -> bool:
        """Returns whether the engine has it; False for one that is down, when it is not ``needed``."""
        async with member.lock:
            for tried in range(1, TRIES + 1):
                try:
                    held = await (self._send(member, wanted) if needed else _while_up(member, lambda: self._send(member, wanted)))
                    break
                except (TransferInterrupted, ActorDied, Undeliverable) as error:
                    logger.warning("version %d has not reached %s: %s", wanted.version, member.name, error)
                    if tried == TRIES:
                        raise
                    if not needed and await _is_down(member):
                        return False
            if held.version == wanted.version and held.digest != wanted.digest:
                raise WeightSyncError(f"{member.name} holds {held.digest} as version {held.version}; published was {wanted.digest}")
        return True

    async def _send(self, member: Member, wanted: Held) -> Held:
        """Send what the engine does not have; returns what it holds then. Waits for an engine that is started again."""
        held = await member.engine.call(EngineProcess.held)
        if held != wanted and held.version <= wanted.version:
            return await member.sender.call(WeightSender.send, member.engine.address)
        return held


async def _while_up(member: Member, function: Callable[[], Coroutine[Any, Any, Held]]) -> Held:
    """The result of ``function``. Raises ActorDied as soon as the member is down: a call would wait for its next life."""

    async def watch() -> None:
        await member.down.wait()
        raise ActorDied(member.name, "it is between two lives")

    try:
        async with running(watch):
            return await function()
    except ExceptionGroup as both:
        # It has failed in the moment in which the member went down.
        raise both.exceptions[-1] from None


async def _is_down(member: Member) -> bool:
    """Whether an engine whose connection broke has died."""
    try:
        async with asyncio.timeout(NOTICE_SECONDS):
            await member.down.wait()
    except TimeoutError:
        return False
    return True
