"""Deterministic simulation: several actor systems on one loop, in virtual time, over a network with faults.

Everything random comes from one seed, so a run that went wrong goes wrong again. Example::

    simulation = Simulation(seed=7)

    async def main() -> int:
        async with simulation.system("there") as there, simulation.system("here") as here:
            await there.spawn(Counter, name="counter")
            simulation.network.disturb(rate=0.5)
            return await here.ref(there.address("counter"), Counter).with_deadline(60).call(Counter.add, 2)

    simulation.run(main)
"""

import asyncio
import gc
import hashlib
import struct
from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from asyncrl.runtime.security import Identity
from asyncrl.runtime.simulated_host import SimulatedHost
from asyncrl.runtime.simulated_loop import LONGEST_RUN, SimulatedLoop
from asyncrl.runtime.simulated_network import Faults, NetworkEvent, SimulatedNetwork, SimulatedTransport
from asyncrl.runtime.site import CREDIT
from asyncrl.runtime.system import ActorSystem

__all__ = ["Faults", "NetworkEvent", "SimulatedHost", "SimulatedLoop", "SimulatedNetwork", "SimulatedTransport", "Simulation", "Trace"]

T = TypeVar("T")

TOKEN = b"simulated" * 4
STAMP = struct.Struct("<dq")
SETTLE = 1.0
"""Virtual seconds after the main function in which what it left behind may end."""


class Trace:
    """What happened in a run, as one digest, and the last events."""

    def __init__(self, last: int = 200) -> None:
        self.count = 0
        self._last: deque[NetworkEvent | str] = deque(maxlen=last)
        self._hash = hashlib.blake2b(digest_size=16)

    def event(self, event: NetworkEvent) -> None:
        """Adds an event of the network."""
        self.count += 1
        self._last.append(event)
        update = self._hash.update
        update(STAMP.pack(event.time, event.connection))
        update(f"{event.kind} {event.source} {event.target} ".encode())
        if event.kind == "sent":
            for frame in event.frames:
                update(frame)

    def add(self, line: str) -> None:
        """Adds a line of one's own."""
        self.count += 1
        self._last.append(line)
        self._hash.update(line.encode())

    @property
    def digest(self) -> str:
        """Equal for two runs in which the same things happened at the same times."""
        return self._hash.hexdigest()

    def lines(self) -> list[str]:
        """The last events in words, the newest last."""
        return [event if isinstance(event, str) else _in_words(event) for event in self._last]


def _in_words(event: NetworkEvent) -> str:
    frames = " ".join(bytes(frame[:60]).decode("latin-1") for frame in event.frames)
    return f"{event.time:.6f} {event.kind} {event.source} > {event.target} on {event.connection} {frames!r}"


class Simulation:
    """One run. ``seed`` decides everything; ``limit`` is the longest run in virtual seconds.

    Attributes: ``network`` with its faults, ``trace``, ``files`` (of all processes, by path), ``unhandled`` (what reached
    the loop's exception handler).
    """

    def __init__(self, seed: int, faults: Faults | None = None, limit: float = LONGEST_RUN) -> None:
        self.seed = seed
        self.network = SimulatedNetwork(seed, faults)
        self.trace = Trace()
        self.network.watchers.append(self.trace.event)
        self.files: dict[str, bytearray] = {}
        self.unhandled: list[dict[str, Any]] = []
        self._limit = limit
        self._generations: dict[str, int] = {}
        self._living: dict[str, tuple[str, ActorSystem, SimulatedHost]] = {}

    def system(self, process: str, endpoint: str = "", credit: int = CREDIT, role: str = "") -> ActorSystem:
        """Starts a process, which says that it has ``role``. The second life of a name has generation 1, and its endpoint unless
        another one is given.

        An older life that still runs becomes a stale one: it keeps its connections, its endpoint belongs to the new one.
        """
        generation = self._generations[process] = self._generations.get(process, -1) + 1
        node = f"{process}#{generation}"
        host = SimulatedHost(self.seed, node, self.files)
        transport = self.network.transport(node, endpoint or f"sim://{process}")
        system = ActorSystem(Identity(process, "simulated", generation, TOKEN, role), host, transport, credit=credit)
        self._living[process] = node, system, host
        loop = asyncio.get_running_loop()
        if isinstance(loop, SimulatedLoop):
            loop.watch(system.waits)
        return system

    def node(self, process: str) -> str:
        """What the network calls the present life of a process. Raises KeyError for one that never lived."""
        return self._living[process][0]

    async def crash(self, process: str, silent: bool = False) -> None:
        """The process is gone: its connections break without goodbye, nothing that it still does is seen by anybody.

        Its actors are stopped so that nothing is left of it: their ``on_stop`` runs, in vain. ``silent`` as in the network.
        """
        node, system, host = self._living[process]
        if node in self.network.nodes:
            self.network.crash(node, silent)
        host.crash()
        await system.close("crashed")

    def run(self, main: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Runs ``main`` on a simulated loop. Raises what it raises, SimulationStuck, or RuntimeError for what it left behind.

        The garbage collector rests meanwhile: it would end abandoned generators at moments that no seed decides.
        """
        collects = gc.isenabled()
        gc.disable()
        try:
            with asyncio.Runner(loop_factory=lambda: SimulatedLoop(self.seed, self._limit)) as runner:
                runner.get_loop().set_exception_handler(lambda loop, context: self.unhandled.append(context))
                return runner.run(self._whole(main))
        finally:
            if collects:
                gc.enable()

    async def _whole(self, main: Callable[[], Coroutine[Any, Any, T]]) -> T:
        result = await main()
        self.network.heal()
        await asyncio.sleep(SETTLE)
        left = sorted(task.get_name() for task in asyncio.all_tasks() if task is not asyncio.current_task())
        if left:
            raise RuntimeError(f"tasks were left behind: {', '.join(left)}")
        if self.unhandled:
            context = self.unhandled[0]
            raise RuntimeError(f"reached the loop's exception handler: {context['message']}") from context.get("exception")
        return result
