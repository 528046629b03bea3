"""Agents and engines over a simulated network: processes that crash, connections that break, and what is left of requests."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from typing import ParamSpec, TypeVar

import pytest

from asyncrl.runtime import ActorSystem
from asyncrl.runtime.simulation import Faults, Simulation
from asyncrl.runtime.tasks import Crew
from asyncrl.trajectory import GenerateOutput, GenerateRequest
from asyncrl.workers.engines import EngineClient, EngineRouter
from asyncrl.workers.rollout import RolloutWorker
from tests.unit.workers.engine_room import SpyEngine, ask, script

P = ParamSpec("P")
T = TypeVar("T")

STEP = 0.05
"""Virtual seconds of a step."""


class SlowDevice:
    """Takes its time for each job, in virtual seconds."""

    async def run(self, function: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        await asyncio.sleep(STEP)
        return function(*args, **kwargs)


class Engines:
    """Engine processes that can die and come back, by number."""

    def __init__(self, simulation: Simulation) -> None:
        self._simulation = simulation
        self.systems: dict[int, ActorSystem] = {}
        self.engines: dict[int, SpyEngine] = {}

    async def start(self, number: int) -> None:
        system = self._simulation.system(f"engine-{number}")
        engine = SpyEngine(endless)
        await system.spawn(RolloutWorker, SlowDevice(), engine, name="rollout")
        self.systems[number], self.engines[number] = system, engine

    async def crash(self, number: int) -> None:
        del self.engines[number]
        await self._simulation.crash(f"engine-{number}")


def endless(request: GenerateRequest) -> list[int]:
    return script(request, 1000)


@contextlib.asynccontextmanager
async def world(simulation: Simulation, engines: int) -> AsyncIterator[tuple[Engines, ActorSystem, EngineRouter]]:
    fleet = Engines(simulation)
    for number in range(engines):
        await fleet.start(number)
    crew = Crew()
    async with simulation.system("agent") as system:
        addresses = [fleet.systems[number].address("rollout") for number in range(engines)]
        clients = [EngineClient(f"agent.{number}", system.ref(address, RolloutWorker)) for number, address in enumerate(addresses)]
        for client in clients:
            crew.start(client.follow, name="answers")
        try:
            yield fleet, system, EngineRouter(clients, None, system.waits, patience=600.0)
        finally:
            await crew.close(5.0)
            for engine in fleet.systems.values():
                await engine.close()


@pytest.mark.parametrize("seed", range(8))
def test_every_answer_comes_whole_over_crashes_and_broken_connections_and_engines_keep_nothing(seed: int) -> None:
    simulation = Simulation(seed, Faults(heartbeat=2.0, lengths=(0.05, 4.0)))

    async def main() -> list[GenerateOutput]:
        async with world(simulation, engines=2) as (fleet, _, router), asyncio.TaskGroup() as group:
            answers = [group.create_task(router.generate(ask(session, max_tokens=60))) for session in range(6)]
            simulation.network.disturb(rate=0.5)
            await asyncio.sleep(1.0)
            await fleet.crash(seed % 2)
            await asyncio.sleep(0.5)
            await fleet.start(seed % 2)
            await asyncio.sleep(20.0)
            simulation.network.heal()
            outputs = [await answer for answer in answers]
            # Whoever lost a connection is noticed within a heartbeat or two.
            await asyncio.sleep(10.0)
            assert [engine.unfinished for engine in fleet.engines.values()] == [0, 0]
            return outputs

    outputs = simulation.run(main)
    assert [output.token_ids for output in outputs] == [endless(ask(session))[:60] for session in range(6)]


@pytest.mark.parametrize("silent", [False, True])
def test_no_engine_generates_for_an_agent_that_is_gone(silent: bool) -> None:
    simulation = Simulation(3, Faults(heartbeat=2.0))

    async def main() -> tuple[int, int]:
        fleet = Engines(simulation)
        await fleet.start(0)
        system = simulation.system("agent")
        client = EngineClient("agent.0", system.ref(fleet.systems[0].address("rollout"), RolloutWorker))
        crew = Crew()
        crew.start(client.follow, name="answers")
        for session in range(3):
            crew.start(_ask_for_ever, client, session, name="session")
        await asyncio.sleep(1.0)
        working = fleet.engines[0].unfinished
        await simulation.crash("agent", silent)
        await crew.close(1.0)
        await asyncio.sleep(10.0)
        left = fleet.engines[0].unfinished
        await fleet.systems[0].close()
        return working, left

    assert simulation.run(main) == (3, 0)


async def _ask_for_ever(client: EngineClient, session: int) -> None:
    await client.generate(ask(session, max_tokens=1000))
