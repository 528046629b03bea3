"""Watches of shards that die or cannot be reached: each goes on as long as a life may follow, and ends when none does; simulated."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing
from typing import Any

import pytest

from asyncrl.errors import ActorDied
from asyncrl.runtime import endpoint
from asyncrl.runtime.directory import DIRECTORY, Directory
from asyncrl.runtime.simulation import Faults, Simulation
from asyncrl.runtime.whereabouts import KnownProcesses, Whereabouts, up
from asyncrl.transfer_queue.client import Snapshot, Tag, TransferQueue, WatchEvent
from asyncrl.transfer_queue.shard import QueueShard, ShardOptions

HEARTBEAT = 10.0
"""Seconds after which an end of a connection takes the other one for dead; a bit more, as it is drawn."""
GONE_SECONDS = 15.0
"""Within which a watch ends where nobody listens any more."""


class Hanging(QueueShard):
    """A shard that says nothing to who watches it."""

    def __init__(self, slot: int, options: ShardOptions, watched: asyncio.Event) -> None:
        super().__init__(slot, options)
        self._watched = watched

    @endpoint
    async def watch(self, partition_id: str, where: Tag | None) -> AsyncIterator[WatchEvent]:
        self._watched.set()
        await asyncio.Event().wait()
        async for event in super().watch(partition_id, where):
            yield event


class Place:
    """A shard, a trainer that watches it, and a directory that the trainer may have joined."""

    def __init__(self, simulation: Simulation, informed: bool) -> None:
        self.simulation, self.informed = simulation, informed
        self.owner, self.trainer = simulation.system("owner"), simulation.system("trainer")
        self.shard = simulation.system("shard")
        self.known = KnownProcesses()

    async def begin(self) -> TransferQueue:
        await self.owner.spawn(Directory, self.known, lambda actor: [], name=DIRECTORY)
        if self.informed:
            await self.trainer.join(self.owner.address(DIRECTORY))
        await self.life(QueueShard, 0, ShardOptions())
        return TransferQueue([self.trainer.ref(self.shard.address("shard"), QueueShard)])

    async def life(self, kind: type[QueueShard], *args: Any) -> None:
        await self.shard.spawn(kind, *args, name="shard")
        self.known.learn(up(self.shard.address("shard"), replaceable=True))

    async def ends(self) -> None:
        """The present life does; another follows."""
        await self.simulation.crash("shard")
        generation = self.shard.identity.generation
        self.known.learn(Whereabouts("shard", generation, "restarting", None, "signal 9", replaceable=True))
        self.shard = self.simulation.system("shard")

    async def close(self) -> None:
        for system in (self.trainer, self.shard, self.owner):
            await system.close()


def run(main: Callable[[Place, TransferQueue, Any], Awaitable[None]], informed: bool = True, seed: int = 1) -> None:
    """``main`` gets the events behind the first one."""
    simulation = Simulation(seed, Faults(heartbeat=HEARTBEAT))

    async def whole() -> None:
        place = Place(simulation, informed)
        queue = await place.begin()
        async with aclosing(queue.watch("train")) as events:
            assert isinstance(await anext(events), Snapshot)
            await main(place, queue, events)
        await place.close()

    simulation.run(whole)


async def ends_with_its_death(events: Any, more: float = 0.0) -> None:
    async with asyncio.timeout(3 * (GONE_SECONDS + more)):
        # Only its end is left to come.
        with pytest.raises(ActorDied, match="shard"):
            await anext(events)


@pytest.mark.parametrize("end", ["killed", "its machine lost", "closed"])
@pytest.mark.parametrize("informed", [False, True])
@pytest.mark.parametrize("seed", range(3))
def test_a_watch_of_a_shard_that_is_gone_ends_although_nobody_tells(end: str, informed: bool, seed: int) -> None:
    async def main(place: Place, queue: TransferQueue, events: Any) -> None:
        if end == "closed":
            await place.shard.close()
        else:
            await place.simulation.crash("shard", silent=end != "killed")
        # Where a directory is silent about it, each try waits a moment for its word.
        await ends_with_its_death(events, 30.0 * informed + HEARTBEAT)

    run(main, informed, seed)


def test_a_watch_of_a_shard_that_is_told_to_be_dead_ends_at_once() -> None:
    async def main(place: Place, queue: TransferQueue, events: Any) -> None:
        await place.simulation.crash("shard")
        place.known.learn(Whereabouts("shard", 0, "dead", None, "exit code 3"))
        async with asyncio.timeout(0.5):
            with pytest.raises(ActorDied, match="exit code 3"):
                await anext(events)

    run(main)


def test_a_watch_ends_with_its_own_system() -> None:
    async def main(place: Place, queue: TransferQueue, events: Any) -> None:
        await place.simulation.crash("shard")
        waiting = asyncio.ensure_future(anext(events))
        await asyncio.sleep(3.0)
        await place.trainer.close()
        async with asyncio.timeout(6.0):
            with pytest.raises(ActorDied, match="trainer"):
                await waiting

    run(main, informed=False)


@pytest.mark.parametrize("lives", [1, 20])
@pytest.mark.parametrize("start", [0.1, 40.0])
def test_a_watch_outlives_lives_that_end_before_their_first_event(lives: int, start: float) -> None:
    async def main(place: Place, queue: TransferQueue, events: Any) -> None:
        waiting = asyncio.ensure_future(anext(events))
        for _ in range(lives):
            await place.ends()
            await asyncio.sleep(start)
            watched = asyncio.Event()
            await place.life(Hanging, 0, ShardOptions(), watched)
            async with asyncio.timeout(60.0):
                await watched.wait()
            assert not waiting.done()
        await place.ends()
        await place.life(QueueShard, 0, ShardOptions())
        async with asyncio.timeout(60.0):
            assert isinstance(await waiting, Snapshot)
        await queue.kv_put("u_0", "train", tag={"n": 1})
        assert dict((await anext(events)).rows) == {"u_0": {"n": 1}}

    run(main)


@pytest.mark.parametrize("informed", [False, True])
@pytest.mark.parametrize("cuts", [1, 30])
def test_a_watch_goes_on_over_connections_that_break(cuts: int, informed: bool) -> None:
    async def main(place: Place, queue: TransferQueue, events: Any) -> None:
        for number in range(cuts):
            place.simulation.network.cut(place.simulation.node("trainer"), place.simulation.node("shard"))
            # Some before the first event of the next stream.
            await asyncio.sleep(0.001 if number % 2 else 0.5)
        async with asyncio.timeout(60.0):
            assert isinstance(await anext(events), Snapshot)

    run(main, informed)


@pytest.mark.parametrize("seconds", [5.0, 12.0, 25.0])
def test_a_watch_goes_on_over_a_partition(seconds: float) -> None:
    async def main(place: Place, queue: TransferQueue, events: Any) -> None:
        place.simulation.network.partition([place.simulation.node("shard")], seconds)
        await asyncio.sleep(seconds)
        async with asyncio.timeout(60.0):
            await queue.kv_put("u_0", "train", tag={"n": 1})
            seen: dict[str, Tag | None] = {}
            while seen != {"u_0": {"n": 1}}:
                seen |= (await anext(events)).rows

    run(main, informed=False)
