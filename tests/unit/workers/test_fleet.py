"""New weights do not wait for an engine that is between two lives, as long as another has them."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Literal

import pytest

from asyncrl.runtime import Actor, ActorAddress, ActorRef, endpoint
from asyncrl.runtime.curve import CONTROLLER
from asyncrl.runtime.simulation import Simulation
from asyncrl.workers.engine_process import EngineProcess, Held
from asyncrl.workers.fleet import EngineFleet, Member
from asyncrl.workers.weights import WeightSender

OLD, NEW = Held(1, "old"), Held(2, "new")
Stage = Literal["asked", "sent"]


class Engine(Actor):
    """Answers for an EngineProcess. While it is not up, whoever calls waits, as for a process that is started again.

    ``dies``: where its life ends.
    """

    concurrency = 0

    def __init__(self) -> None:
        self.has = OLD
        self.up, self.died = asyncio.Event(), asyncio.Event()
        self.up.set()
        self.dies: Stage | None = None

    @endpoint
    async def held(self) -> Held:
        """As that of EngineProcess."""
        await self.reach("asked")
        return self.has

    async def reach(self, stage: Stage) -> None:
        """A caller has come so far; returns as long as the engine lives."""
        if stage == self.dies:
            self.up.clear()
            self.died.set()
        await self.up.wait()


class Sender(Actor):
    """Answers for a WeightSender: brings the new version."""

    concurrency = 0

    def __init__(self, engines: dict[str, Engine]) -> None:
        self.engines = engines

    @endpoint
    async def send(self, engine: ActorAddress) -> Held:
        """As that of WeightSender."""
        found = self.engines[engine.process]
        await found.reach("sent")
        found.has = NEW
        return NEW


class Room:
    """Two engines with the fleet of them."""

    def __init__(self, engines: list[Engine], members: list[Member], fleet: ActorRef[EngineFleet]) -> None:
        self.engines, self.members, self.fleet = engines, members, fleet

    async def publish(self) -> None:
        # Virtual seconds: whoever waits for a next life waits longer.
        async with asyncio.timeout(10):
            await self.fleet.call(EngineFleet.publish, NEW.version, NEW.digest)


@contextlib.asynccontextmanager
async def room(simulation: Simulation) -> AsyncIterator[Room]:
    first, second = (simulation.system(f"engine-{number}") for number in range(2))
    async with first, second, simulation.system("main", role=CONTROLLER) as here:
        addresses = [(await system.spawn(Engine, name="keeper")).address for system in (first, second)]
        engines = [system.instance("keeper", Engine) for system in (first, second)]
        named = {address.process: engine for address, engine in zip(addresses, engines, strict=True)}
        sender = await here.spawn(Sender, named, name="weights")
        sends = here.ref(sender.address, WeightSender)
        members = [Member(here.ref(address, EngineProcess).watched(600.0), sends.watched(600.0)) for address in addresses]
        fleet = await here.spawn(EngineFleet, members, print, name="fleet")
        yield Room(engines, members, fleet.watched(600.0))


@pytest.mark.parametrize("stage", ["asked", "sent"])
def test_word_of_a_death_ends_the_wait_for_a_next_life_that_has_begun(stage: Stage) -> None:
    simulation = Simulation(1)

    async def main() -> list[Held]:
        async with room(simulation) as here:
            here.engines[0].dies = stage
            publishing = asyncio.ensure_future(here.publish())
            # The system of the caller may know before the fleet hears of it.
            await here.engines[0].died.wait()
            here.members[0].down.set()
            await publishing
            return [engine.has for engine in here.engines]

    assert simulation.run(main) == [OLD, NEW]


def test_where_no_other_engine_lives_its_next_life_is_waited_for() -> None:
    simulation = Simulation(1)

    async def main() -> Held:
        async with room(simulation) as here:
            here.engines[0].dies = "asked"
            for member in here.members:
                member.down.set()
            publishing = asyncio.ensure_future(here.publish())
            await here.engines[0].died.wait()
            here.engines[0].dies = None
            here.engines[0].up.set()
            await publishing
            return here.engines[0].has

    assert simulation.run(main) == NEW


def test_a_connection_that_breaks_as_the_word_comes_costs_the_others_nothing() -> None:
    simulation = Simulation(1)

    async def main() -> Held:
        async with room(simulation) as here:
            here.engines[0].dies = "asked"
            publishing = asyncio.ensure_future(here.publish())
            await here.engines[0].died.wait()
            await simulation.crash("engine-0")
            here.members[0].down.set()
            await publishing
            return here.engines[1].has

    assert simulation.run(main) == NEW
