"""The processes of a simulated run: who lives, who hosts which actors, and how lives end and begin."""

import asyncio
from collections.abc import Callable
from random import Random

import msgspec

from asyncrl.runtime import ActorAddress, ActorSystem
from asyncrl.runtime.directory import DIRECTORY, Directory
from asyncrl.runtime.simulation import Faults, NetworkEvent, Simulation
from asyncrl.runtime.whereabouts import KnownProcesses, State, Whereabouts, up
from tests.simulation.journal import Journal
from tests.simulation.wire import WireCheck
from tests.simulation.workers import Member, Wide, Worker

ACTORS: dict[str, type[Worker]] = {"worker": Worker, "wide": Wide, "member": Member}


class Life(msgspec.Struct, eq=False):
    """One life of a process. ``crashed`` or ``closed`` when it is over; ``stale`` when a newer one has taken its name."""

    process: str
    node: str
    system: ActorSystem
    addresses: dict[str, ActorAddress]
    crashed: bool = False
    closed: bool = False
    stale: bool = False

    @property
    def generation(self) -> int:
        """Which life of its process it is."""
        return int(self.node.partition("#")[2])

    @property
    def over(self) -> bool:
        """Whether it has ended."""
        return self.crashed or self.closed


class World:
    """One run: its simulation, its journal and its lives."""

    def __init__(self, seed: int, limit: float = 3600.0) -> None:
        self.random = Random(f"scenario {seed}")
        self.faults = Faults(
            latency=(1e-4, self.random.choice([1e-3, 1e-2, 0.1])),
            heartbeat=self.random.uniform(1.0, 10.0),
            routers=self.random.choice([0.0, 0.5, 1.0]),
        )
        self.credit = self.random.choice([2, 3, 12, 1024])
        self.simulation = Simulation(seed, self.faults, limit)
        self.network = self.simulation.network
        self.journal = Journal()
        self.lives: list[Life] = []
        self.known = KnownProcesses() if self.random.random() < 0.4 else None
        self._at_deliveries: dict[str, list[tuple[int, Callable[[], object]]]] = {}
        self.wire = WireCheck(self.journal, self.credit)
        self.network.watchers.append(self._heard)
        self.network.watchers.append(self.wire.event)

    def _heard(self, event: NetworkEvent) -> None:
        if event.kind == "lost":
            self.journal.lost.setdefault((event.source, event.target), []).append(event.time)
        elif event.kind == "delivered" and (waiting := self._at_deliveries.pop(event.target, None)):
            later = []
            for count, act in waiting:
                if count > 1:
                    later.append((count - 1, act))
                else:
                    # Comes before whatever the message sets in motion.
                    asyncio.get_running_loop().call_soon(act)
            if later:
                self._at_deliveries[event.target] = later

    def at_delivery(self, node: str, count: int, act: Callable[[], object]) -> None:
        """``act`` comes with the message that is the ``count``-th from now to reach ``node``."""
        self._at_deliveries.setdefault(node, []).append((count, act))

    async def start(self, process: str) -> Life:
        """Begins a life of a process, with one actor of each kind."""
        system = self.simulation.system(process, credit=self.credit)
        node = self.simulation.node(process)
        for name, cls in ACTORS.items():
            await system.spawn(cls, self.journal, node, name=name)
        life = Life(process, node, system, {name: system.address(name) for name in ACTORS})
        self.lives.append(life)
        if self.known is not None:
            if len(self.lives) == 1:
                await system.spawn(Directory, self.known, lambda actor: [], name=DIRECTORY)
            await system.join(self.lives[0].system.address(DIRECTORY))
            self.known.learn(up(life.addresses["worker"]))
        return life

    def _tell(self, life: Life, again: bool, cause: str) -> None:
        """What a supervisor would say of a process that has ended."""
        if self.known is not None:
            state: State = "restarting" if again else "dead"
            self.known.learn(Whereabouts(life.process, life.generation, state, None, cause))

    @property
    def living(self) -> list[Life]:
        """The lives that go on, stale ones included."""
        return [life for life in self.lives if not life.over]

    @property
    def current(self) -> list[Life]:
        """The lives that go on and own their names."""
        return [life for life in self.living if not life.stale]

    async def crash(self, life: Life, silent: bool, again: bool) -> None:
        """Ends a life without goodbye; ``again`` if there will be another."""
        life.crashed = True
        ending = self.simulation.crash(life.process, silent)
        self._tell(life, again, "crashed")
        await ending

    async def close(self, life: Life, cause: str, again: bool = False) -> None:
        """Ends a life in good order."""
        life.closed = True
        await life.system.close(cause)
        self._tell(life, again, cause)

    async def renew(self, life: Life, name: str) -> None:
        """Stops one actor and puts a fresh one in its place."""
        await life.system.stop(name, "renewed")
        await life.system.spawn(ACTORS[name], self.journal, life.node, name=name)

    async def replace(self, life: Life, frozen: float) -> Life:
        """A process stands still, is taken for dead and gets a successor; then it wakes."""
        life.stale = True
        self.network.freeze(life.node, frozen)
        await asyncio.sleep(frozen / 3)
        return await self.start(life.process)
