"""Peers whose messages are duplicated, lost or reordered: typed errors, never a wrong result or a second effect."""

import asyncio
import logging
from random import Random

import pytest

from asyncrl.runtime import ActorSystem
from asyncrl.runtime.security import Identity
from asyncrl.runtime.simulation import SimulatedHost
from tests.simulation.clients import Client
from tests.simulation.invariants import effects_of, promises_of
from tests.simulation.lying import LIES, LyingTransport
from tests.simulation.world import ACTORS, Life, World

SEEDS = 8


async def start(world: World, process: str, lie: str, rate: float) -> Life:
    """A process that lies."""
    node = f"{process}#0"
    transport = LyingTransport(world.network.transport(node), world.random, lie, rate)
    system = ActorSystem(Identity(process), SimulatedHost(world.simulation.seed, node), transport, credit=world.credit)
    for name, cls in ACTORS.items():
        await system.spawn(cls, world.journal, node, name=name)
    life = Life(process, node, system, {name: system.address(name) for name in ACTORS})
    world.lives.append(life)
    return life


@pytest.mark.parametrize("lie", LIES)
@pytest.mark.parametrize("seed", range(SEEDS))
def test_a_lie_leads_to_typed_errors_only(seed: int, lie: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.ERROR, "asyncrl")
    world = World(seed)
    # The conversation breaks its rules on purpose.
    world.network.watchers.remove(world.wire.event)
    outcomes: dict[str, int] = {}

    async def main() -> None:
        lives = [await start(world, f"p{number}", lie, world.random.choice([0.02, 0.2])) for number in range(3)]
        clients = [Client(world, life, Random(f"{seed} {life.node}")) for life in lives]
        await asyncio.gather(*[client.run(25, 0.1) for client in clients])
        for life in lives:
            await life.system.close()

    world.simulation.run(main)
    problems = list(world.journal.problems)
    for operation in world.journal.operations.values():
        problems += [f"operation {operation}: {problem}" for problem in effects_of(world.journal, operation) + promises_of(operation)]
        outcomes[operation.outcome] = outcomes.get(operation.outcome, 0) + 1
    assert not problems
    assert outcomes["result"] > 5
