"""A process that cannot hear its directory for a time follows it again, and waits for nothing from one that stays away; simulated."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
import pytest

from asyncrl.errors import ActorDied, CallTimedOut, Undeliverable
from asyncrl.runtime import ActorAddress, ActorSystem
from asyncrl.runtime.directory import DIRECTORY, Directory
from asyncrl.runtime.neighbours import GONE_SECONDS, LONGEST_PAUSE
from asyncrl.runtime.retries import Retries
from asyncrl.runtime.simulation import Faults, Simulation
from asyncrl.runtime.whereabouts import KnownProcesses, Whereabouts, up
from tests.unit.runtime.runtime_actors import Counter

HEARTBEAT = 10.0
"""Seconds after which an end of a simulated connection takes the other one for dead; a bit more, as it is drawn."""
BACK = 3 * (LONGEST_PAUSE + 2.0)
"""Seconds until a directory that is there again is heard, at most."""


class Land:
    """A process with a directory, a caller that has joined it, and "shard", of which the directory tells."""

    def __init__(self, simulation: Simulation) -> None:
        self.simulation = simulation
        self.owner, self.caller, self.shard = (simulation.system(name) for name in ("owner", "caller", "shard"))
        self.known = KnownProcesses()

    async def begin(self) -> None:
        await self.owner.spawn(Directory, self.known, lambda actor: [], name=DIRECTORY)
        await self.shard.spawn(Counter, 0, name="counter")
        self.known.learn(up(self.shard.address("counter"), replaceable=True))
        await self.caller.join(self.owner.address(DIRECTORY))

    @property
    def cut_off(self) -> str:
        return self.simulation.node("owner")

    async def next_life(self) -> None:
        """Another "shard"; the directory is told."""
        await self.simulation.crash("shard")
        self.known.learn(Whereabouts("shard", 0, "restarting", None, "signal 9", replaceable=True))
        self.shard = self.simulation.system("shard", endpoint="sim://elsewhere")
        await self.shard.spawn(Counter, 100, name="counter")
        self.known.learn(up(self.shard.address("counter"), replaceable=True))

    async def add(self) -> int:
        """A call by the address of the first life, which only the directory can lead to the present one."""
        first = msgspec.structs.replace(self.shard.address("counter"), endpoint="sim://shard", generation=0)
        return await self.caller.ref(first, Counter).with_deadline(0.5).call(Counter.add, 1)

    async def close(self) -> None:
        for system in (self.caller, self.shard, self.owner):
            await system.close()


def run(seed: int, main: Callable[[Land], Awaitable[Any]]) -> None:
    simulation = Simulation(seed, Faults(heartbeat=HEARTBEAT))

    async def whole() -> None:
        land = Land(simulation)
        await land.begin()
        await main(land)
        await land.close()

    simulation.run(whole)


async def within(seconds: float, look: Callable[[], Awaitable[bool]]) -> None:
    """Looks every virtual tenth of a second until it is so."""
    async with asyncio.timeout(seconds):
        while True:
            if await look():
                return
            await asyncio.sleep(0.1)


@pytest.mark.parametrize("seconds", [3.0, 12.0, 40.0, 400.0])
@pytest.mark.parametrize("seed", range(3))
def test_a_directory_that_was_cut_off_for_a_time_is_followed_again(seconds: float, seed: int) -> None:
    async def main(land: Land) -> None:
        assert await land.add() == 1
        land.simulation.network.partition([land.cut_off], seconds)
        await asyncio.sleep(seconds / 2)
        await land.next_life()
        await asyncio.sleep(seconds / 2)

        async def reaches_the_new_life() -> bool:
            try:
                return await land.add() > 100
            except (ActorDied, CallTimedOut):
                return False

        await within(HEARTBEAT + BACK, reaches_the_new_life)

    run(seed, main)


@pytest.mark.parametrize("cuts", [1, 5])
def test_a_directory_whose_connection_breaks_over_and_over_is_followed_again(cuts: int) -> None:
    async def main(land: Land) -> None:
        for _ in range(cuts):
            land.simulation.network.cut(land.cut_off, land.simulation.node("caller"))
            await asyncio.sleep(0.01)
        await land.next_life()

        async def reaches_the_new_life() -> bool:
            try:
                return await land.add() > 100
            except (ActorDied, CallTimedOut):
                return False

        await within(BACK, reaches_the_new_life)

    run(1, main)


@pytest.mark.parametrize("silent", [False, True])
def test_a_directory_that_died_without_a_word_lets_nobody_wait_for_its_news(silent: bool) -> None:
    async def main(land: Land) -> None:
        await land.simulation.crash("shard")
        land.known.learn(Whereabouts("shard", 0, "restarting", None, "signal 9", replaceable=True))
        await asyncio.sleep(0.1)
        waiting = asyncio.ensure_future(land.caller.ref(land.shard.address("counter"), Counter).with_deadline(0.0).call(Counter.add, 1))
        await asyncio.sleep(0.1)
        await land.simulation.crash("owner", silent)
        async with asyncio.timeout(3 * GONE_SECONDS + (3 * HEARTBEAT if silent else 0.0)):
            with pytest.raises(ActorDied, match="signal 9; owner, which could tell of its restart, is gone"):
                await waiting

    run(2, main)


@pytest.mark.parametrize("end", ["goodbye", "known to be dead"])
def test_a_directory_that_is_gone_for_good_is_not_tried_again(end: str) -> None:
    async def main(land: Land) -> None:
        if end == "goodbye":
            await land.owner.close()
        else:
            land.caller.peer_died("owner", "exit code 3")
        await asyncio.sleep(1.0)
        before = land.simulation.trace.count
        await asyncio.sleep(300.0)
        assert land.simulation.trace.count == before

    run(3, main)


def test_one_that_joins_while_nobody_is_there_follows_as_soon_as_there_is_a_directory(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "asyncrl.runtime.neighbours")

    async def main(land: Land) -> None:
        there = msgspec.structs.replace(land.owner.address(DIRECTORY), process="late", endpoint="sim://late")
        await land.shard.join(there)
        await asyncio.sleep(60.0)
        # Once, not at each try.
        assert caplog.text.count("the directory in late cannot be heard") == 1
        async with land.simulation.system("late") as late:
            await late.spawn(Directory, land.known, lambda actor: [], name=DIRECTORY)
            land.known.learn(up(ActorAddress("other", "sim://other", "name", "simulated", 0)))

            async def knows() -> bool:
                try:
                    return (await land.shard.lookup("name", Counter)).address.process == "other"
                except Undeliverable:
                    return False

            await within(BACK, knows)

    run(4, main)


def test_a_process_may_join_again_a_directory_that_had_left() -> None:
    async def main(land: Land) -> None:
        await land.owner.close()
        await asyncio.sleep(1.0)
        owner: ActorSystem = land.simulation.system("owner")
        await owner.spawn(Directory, land.known, lambda actor: [], name=DIRECTORY)
        await land.caller.join(owner.address(DIRECTORY))
        await land.next_life()
        await asyncio.sleep(0.1)
        assert await land.add() == 101
        await owner.close()

    run(5, main)


def test_pauses_between_tries_grow_to_the_longest_and_begin_anew_after_a_success() -> None:
    async def main() -> list[float]:
        loop, retries, lengths = asyncio.get_running_loop(), Retries(1.0), []
        for succeeded in (False, False, False, False, False, True):
            if succeeded:
                retries.succeeded()
            begun = loop.time()
            await retries.pause()
            lengths.append(round(loop.time() - begun, 3))
        return lengths

    assert Simulation(0).run(main) == [0.1, 0.2, 0.4, 0.8, 1.0, 0.1]
