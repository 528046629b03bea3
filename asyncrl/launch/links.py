"""How ranks of different nodes watch one another: a stream that never ends on a connection of its own direction."""

import asyncio
import functools
from collections.abc import AsyncGenerator, Sequence

from asyncrl.errors import ActorDied, ActorError, ConfigError, RunFailed, Undeliverable
from asyncrl.launch.control import RankControl
from asyncrl.launch.environment import machine_id
from asyncrl.launch.guard import Guard
from asyncrl.launch.interface import is_loopback_endpoint
from asyncrl.launch.job_key import KEY_FILE
from asyncrl.launch.meeting import Peer
from asyncrl.runtime.curve import KEY_DIFFERS
from asyncrl.runtime.ref import ActorRef
from asyncrl.runtime.system import ActorSystem
from asyncrl.runtime.tasks import Crew, all_of

LEFT = "left: "
"""Before the cause that a rank sends when it ends the attempt; a connection that breaks has none."""

LINK_SECONDS = 30.0


class Links:
    """The links of one rank. The end of a peer ends this rank too, with the peer's own words when it had time for them."""

    def __init__(self, system: ActorSystem, guard: Guard) -> None:
        self._system, self._guard = system, guard
        self._crew = Crew()

    async def open(self, peers: Sequence[Peer]) -> None:
        """Connect and begin to watch. From now on the peers hear why this rank ends.

        Raises ConfigError when a peer holds another key or listens where only its own machine reaches it, RunFailed when it
        refuses or does not answer.
        """
        for peer in peers:
            if is_loopback_endpoint(peer.control.endpoint) and peer.machine != machine_id():
                raise ConfigError(
                    "runtime.interface", "the loopback", f"{peer.name} is another machine; allowed: an interface that the others reach"
                )
        await all_of([functools.partial(self._connect, peer) for peer in peers])
        self._guard.farewell = lambda cause: self._system.farewell(f"{LEFT}{cause}")

    async def _connect(self, peer: Peer) -> None:
        # A link waits as long as the run lasts.
        control: ActorRef[RankControl] = self._system.ref(peer.control, RankControl).with_deadline(0.0)
        stream = control.stream(RankControl.life)
        try:
            async with asyncio.timeout(LINK_SECONDS):
                await anext(stream)
        except Undeliverable as error:
            if KEY_DIFFERS in error.reason:
                raise ConfigError(
                    KEY_FILE, "another key", f"{peer.name} has a different one; every node needs a copy of one file"
                ) from error
            raise RunFailed(f"{peer.name} refuses this process: {error.reason}") from error
        except TimeoutError:
            raise RunFailed(f"{peer.name} (pid {peer.pid}) does not answer") from None
        except ActorDied as error:
            raise RunFailed(cause_of(peer, error)) from error
        self._crew.start(self._watch, peer, stream, name=f"link to {peer.name}")

    async def _watch(self, peer: Peer, stream: AsyncGenerator[bool, None]) -> None:
        cause = f"{peer.name} (pid {peer.pid}) ended its link"
        try:
            async for _ in stream:
                pass
        except ActorError as error:
            cause = cause_of(peer, error)
        if not self._guard.released:
            self._guard.end(cause)

    async def close(self) -> None:
        """Stop watching."""
        await self._crew.close(1.0)


def cause_of(peer: Peer, error: ActorError) -> str:
    """Why a peer is gone: its own words, or how its connection broke."""
    seen = error.cause if isinstance(error, ActorDied) else str(error)
    return seen.removeprefix(LEFT) if seen.startswith(LEFT) else f"{peer.name} (pid {peer.pid}) died: {seen}"
