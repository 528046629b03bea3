"""The child processes of one actor system: who starts them, and who hears what becomes of them."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from asyncrl.errors import WireError
from asyncrl.runtime.messages import check_name
from asyncrl.runtime.plan import constructor_of
from asyncrl.runtime.supervisor_messages import Membership, ProcessDeath, ProcessSpec, Restarted

if TYPE_CHECKING:
    from asyncrl.runtime.actor import Actor
    from asyncrl.runtime.connections import Connections
    from asyncrl.runtime.messages import ActorAddress
    from asyncrl.runtime.own_supervisor import OwnSupervisor
    from asyncrl.runtime.supervisor_client import SupervisorClient
    from asyncrl.runtime.waits import WaitRegistry
    from asyncrl.runtime.whereabouts import Whereabouts

logger = logging.getLogger(__name__)

ANSWER_SECONDS = 10.0
"""How much later than its own deadline a supervisor may answer."""


class Children:
    """Starts and stops children through a supervisor: one that is attached, or the system's own.

    ``on_death`` and ``on_restart`` are told what happens to the children of an own supervisor, beside the log.
    """

    def __init__(self, process: str, connections: Connections, waits: WaitRegistry) -> None:
        self.on_death: Callable[[ProcessDeath], None] | None = None
        self.on_restart: Callable[[Restarted], None] | None = None
        self._process, self._connections, self._waits = process, connections, waits
        self._supervisor: SupervisorClient | None = None
        self._own: OwnSupervisor | None = None

    @property
    def supervised(self) -> bool:
        """Whether there is a supervisor that has not left."""
        return self._supervisor is not None and not self._supervisor.gone

    @property
    def possible(self) -> bool:
        """Whether there has been one."""
        return self._supervisor is not None

    def own(self, own: OwnSupervisor) -> SupervisorClient:
        """Takes over a supervisor that ends with the system; it is attached next."""
        self._own = own
        own.client.attach_loop(self._died, self._restarted)
        return own.client

    def attach(self, supervisor: SupervisorClient, member: Membership) -> None:
        """Children are started by this supervisor, as members of the system's job."""
        self._supervisor = self._connections.supervisor = supervisor
        supervisor.adopt(member, self._learn)

    async def spawn(self, spec: ProcessSpec) -> ActorAddress:
        """Starts a child; returns when it is ready. Raises as ``SupervisorClient.spawn``, ValueError for this process's own name."""
        assert self._supervisor is not None
        if spec.name == self._process:
            raise ValueError(f"{self._process} is the name of this process, a child needs another")
        with self._waits.waiting(spec.name, f"start of {spec.actor}", spec.ready_within + ANSWER_SECONDS):
            return await self._supervisor.spawn(spec)

    async def stop(self, name: str, grace: float) -> None:
        """Ends a child for good. Raises KeyError for one that does not run."""
        if self._supervisor is None:
            raise KeyError(name)
        with self._waits.waiting(name, "its end", grace + ANSWER_SECONDS):
            await self._supervisor.stop_child(name, grace)

    def stacks(self, name: str) -> str:
        """The stacks of a child that may hang, "" for a name that is none; blocks for up to two seconds. Any thread."""
        return "" if self._supervisor is None else self._supervisor.stacks(name)

    def _learn(self, news: Whereabouts) -> None:
        self._connections.learn(news)
        if news.state == "up" and news.replaceable:
            # Its heartbeats tell whether it is frozen.
            self._connections.watch(news)

    def _died(self, death: ProcessDeath) -> None:
        lines = "".join(f"\n  | {line}" for line in death.cause_lines)
        logger.warning("%s (pid %d) died%s: %s%s", death.name, death.pid, ", it is restarted" * death.restarting, death.cause, lines)
        if self.on_death is not None:
            self.on_death(death)

    def _restarted(self, restarted: Restarted) -> None:
        logger.warning("%s serves again (pid %d)", restarted.name, restarted.pid)
        if self.on_restart is not None:
            self.on_restart(restarted)

    async def close(self) -> None:
        """Stops the children of an own supervisor, and leaves an attached one."""
        if self._own is not None:
            await self._own.stop()
        if self._supervisor is not None:
            self._supervisor.forget(self._learn)


def child_spec(cls: type[Actor], args: tuple[Any, ...], kwargs: dict[str, Any], name: str, process: str, restarts: int = 0) -> ProcessSpec:
    """What a supervisor needs to start ``cls`` as actor ``name`` of a child. Raises WireError for what cannot travel to it."""
    if cls.__module__ == "__main__" or "<locals>" in cls.__qualname__:
        raise WireError(f"{cls.__qualname__} of {cls.__module__} cannot be imported by a child; move it to a module")
    check_name("the name of a process", process)
    data, frames = constructor_of(cls).encode(args, kwargs)
    if frames:
        raise WireError(f"{cls.__qualname__}: buffers cannot be constructor arguments of a child; pass them in a call")
    actor = f"{cls.__module__}:{cls.__qualname__}"
    return ProcessSpec(process, actor, data, {}, actor_name=name, ready_within=cls.ready_within, restarts=restarts, role=cls.process_role)
