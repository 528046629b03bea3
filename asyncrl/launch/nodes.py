"""Children on any node: where the plan puts them, started by the supervisor that is there."""

from collections.abc import Mapping
from typing import Any, TypeVar

from asyncrl.launch.control import RankControl
from asyncrl.runtime.actor import Actor
from asyncrl.runtime.children import child_spec
from asyncrl.runtime.ref import ActorRef
from asyncrl.runtime.system import ActorSystem

A = TypeVar("A", bound=Actor)

ANSWER_SECONDS = 15.0
"""How much later than its child's deadline a node may answer."""


class Nodes:
    """Spawns as an ``ActorSystem`` does, on the node that ``places`` names; ``controls`` are the first ranks of the other nodes."""

    def __init__(self, system: ActorSystem, controls: Mapping[int, ActorRef[RankControl]], places: Mapping[str, int]) -> None:
        self._system, self._controls, self._places = system, controls, places

    async def spawn(self, cls: type[A], *args: Any, name: str, process: str, restarts: int = 0, **kwargs: Any) -> ActorRef[A]:
        """Start ``cls`` in a process of its own; raises as ``ActorSystem.spawn`` does."""
        control = self._controls.get(self._places[process])
        if control is None:
            return await self._system.spawn(cls, *args, name=name, process=process, restarts=restarts, **kwargs)
        spec = child_spec(cls, args, kwargs, name, process, restarts)
        address = await control.with_deadline(spec.ready_within + ANSWER_SECONDS).call(RankControl.start_child, spec)
        return self._system.ref(address, cls)
