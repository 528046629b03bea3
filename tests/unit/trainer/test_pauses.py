"""Engines that die while others are paused for a checkpoint: nobody waits for them, and nobody stays paused; in virtual time."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

import pytest

from asyncrl.errors import ActorDied
from asyncrl.runtime import ActorRef, ActorSystem
from asyncrl.runtime.actor import Actor, endpoint
from asyncrl.runtime.curve import CONTROLLER
from asyncrl.runtime.simulation import Simulation
from asyncrl.trainer.pauses import pause_living, resume_living
from asyncrl.workers.fleet import EngineFleet, Member
from asyncrl.workers.rollout import RolloutWorker

STEP = 0.3
"""Virtual seconds until a step ends, and with it the wait of a pause."""


class PausingEngine(Actor):
    """Answers for a RolloutWorker: a pause takes the rest of a step."""

    concurrency = 0

    def __init__(self, heard: list[str], breaks: int) -> None:
        """``breaks``: how many orders end as if the connection had broken."""
        self._heard, self._breaks = heard, breaks

    @endpoint
    async def pause(self) -> int:
        """As that of RolloutWorker."""
        await self._obey("pause", STEP)
        return 0

    @endpoint
    async def resume(self) -> None:
        """As that of RolloutWorker."""
        await self._obey("resume", 0.0)

    async def _obey(self, order: str, seconds: float) -> None:
        await asyncio.sleep(seconds)
        if self._breaks:
            self._breaks -= 1
            raise ActorDied(self.context.system.process, "the connection broke")
        self._heard.append(f"{self.context.system.process} {order}")


@dataclass(slots=True)
class Room:
    """Two engines and the fleet that hears of their deaths."""

    simulation: Simulation
    engines: list[ActorRef[RolloutWorker]]
    fleet: ActorRef[EngineFleet]
    members: list[Member]
    heard: list[str] = field(default_factory=list)

    async def die(self, number: int, news: float = 0.1) -> None:
        """The process of an engine ends, and the fleet hears of it later."""
        await self.simulation.crash(f"engine-{number}")
        await asyncio.sleep(news)
        self.members[number].down.set()

    async def pause(self) -> None:
        await pause_living(self.engines, self.fleet)

    async def resume(self) -> None:
        await resume_living(self.engines, self.fleet)


@contextlib.asynccontextmanager
async def room(simulation: Simulation, breaks: int = 0) -> AsyncIterator[Room]:
    heard: list[str] = []
    async with contextlib.AsyncExitStack() as stack:
        processes = [await stack.enter_async_context(simulation.system(f"engine-{number}")) for number in range(2)]
        here: ActorSystem = await stack.enter_async_context(simulation.system("controller", role=CONTROLLER))
        spawned: list[Any] = [await system.spawn(PausingEngine, heard, breaks, name="rollout") for system in processes]
        members = [Member(engine, engine) for engine in spawned]
        fleet = await here.spawn(EngineFleet, members, print, name="fleet")
        engines = [here.ref(engine.address, RolloutWorker).watched(600.0) for engine in spawned]
        yield Room(simulation, engines, fleet.watched(60.0), members, heard)


def test_engines_that_live_are_paused_at_the_same_time() -> None:
    simulation = Simulation(1)

    async def main() -> list[str]:
        async with room(simulation) as here:
            began = asyncio.get_running_loop().time()
            await here.pause()
            assert asyncio.get_running_loop().time() - began < 2 * STEP
            await here.resume()
            return here.heard

    assert sorted(simulation.run(main)) == ["engine-0 pause", "engine-0 resume", "engine-1 pause", "engine-1 resume"]


def test_an_engine_that_dies_while_it_pauses_is_left_out_and_the_other_goes_on() -> None:
    simulation = Simulation(1)

    async def main() -> list[str]:
        async with room(simulation) as here, asyncio.TaskGroup() as group:
            group.create_task(here.pause())
            await asyncio.sleep(STEP / 3)
            await here.die(0)
            await here.pause()
            await here.resume()
            return here.heard

    assert [line for line in simulation.run(main) if line.startswith("engine-0")] == []


def test_an_engine_that_is_known_to_be_down_is_not_waited_for() -> None:
    simulation = Simulation(1)

    async def main() -> tuple[list[str], float]:
        async with room(simulation) as here:
            here.members[0].down.set()
            simulation.network.freeze(simulation.node("engine-0"), 1000.0)
            began = asyncio.get_running_loop().time()
            await here.pause()
            await here.resume()
            return here.heard, asyncio.get_running_loop().time() - began

    heard, seconds = simulation.run(main)
    assert heard == ["engine-1 pause", "engine-1 resume"]
    assert seconds < 2 * STEP


def test_an_engine_whose_connection_broke_and_that_lives_does_not_stay_paused() -> None:
    simulation = Simulation(1)

    async def main() -> list[str]:
        async with room(simulation, breaks=1) as here:
            await here.resume()
            return here.heard

    assert sorted(simulation.run(main)) == ["engine-0 resume", "engine-1 resume"]


def test_an_engine_that_cannot_be_reached_and_is_not_down_is_an_error() -> None:
    simulation = Simulation(1)

    async def main() -> None:
        async with room(simulation, breaks=99) as here:
            await here.resume()

    with pytest.raises(ActorDied, match="the connection broke"):
        simulation.run(main)
