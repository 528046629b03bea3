"""What the ranks ask of one another about the run itself: to be there, to start a child, to let go, to leave."""

import asyncio
from collections.abc import AsyncIterator

from asyncrl.errors import ActorError
from asyncrl.launch.guard import Guard
from asyncrl.launch.job_key import RANK
from asyncrl.runtime.actor import Actor, endpoint
from asyncrl.runtime.curve import CONTROLLER
from asyncrl.runtime.messages import ActorAddress
from asyncrl.runtime.supervisor import ProcessSpec, SupervisorClient
from asyncrl.transfer_queue.shard import QueueShard
from asyncrl.workers.agent import AgentWorker
from asyncrl.workers.engine_process import EngineProcess
from asyncrl.workers.reward import RewardWorker

CHILDREN = {f"{kind.__module__}:{kind.__qualname__}": kind.process_role for kind in (QueueShard, AgentWorker, RewardWorker, EngineProcess)}
"""All that another node may have started here, and the role of each."""


class RankControl(Actor):
    """The run as the other ranks see it from here. ``supervisor`` is that of the node, on its first rank."""

    concurrency = 0

    def __init__(self, guard: Guard, over: asyncio.Event, supervisor: SupervisorClient | None) -> None:
        self._guard, self._over, self._supervisor = guard, over, supervisor

    @endpoint(roles=(CONTROLLER, RANK))
    async def life(self) -> AsyncIterator[bool]:
        """One item at once: the connection stands. Then none, as long as this rank lives."""
        yield True
        await asyncio.get_running_loop().create_future()

    @endpoint(roles=(CONTROLLER,))
    async def start_child(self, spec: ProcessSpec) -> ActorAddress:
        """Start a shard, agent or reward worker, or an engine, under the supervisor of this node.

        Raises ActorError for anything else, ActorDied with its last lines for a child that does not come up.
        """
        if self._supervisor is None or CHILDREN.get(spec.actor) != spec.role or spec.environment:
            raise ActorError(f"{self.context.name} starts no {spec.actor} with role {spec.role!r}")
        return await self._supervisor.spawn(spec)

    @endpoint(roles=(CONTROLLER,))
    async def release(self) -> None:
        """The other ranks will leave; stop watching them."""
        self._guard.release()

    @endpoint(roles=(CONTROLLER,))
    async def stop_children(self) -> None:
        """End the supervisor of this node and its children."""
        if self._supervisor is not None:
            await self._supervisor.stop()

    @endpoint(roles=(CONTROLLER,))
    async def leave(self) -> None:
        """The run is over; the rank may go."""
        self._over.set()
