"""The simulated network keeps the contract of all transports: the same tests, under virtual time."""

import asyncio
import gc
import inspect
from collections.abc import AsyncIterator

import pytest

from asyncrl.runtime.simulation import Faults, Simulation
from tests.contracts import test_transport_contract as contract
from tests.contracts.test_transport_contract import Pair
from tests.unit.runtime.runtime_actors import Counter, Diary, Postman, Slow


@pytest.fixture(params=[0.0, 1.0], ids=["both ends told", "manners of a ROUTER"])
async def pair(request: pytest.FixtureRequest) -> AsyncIterator[Pair]:
    simulation = Simulation(11, Faults(routers=request.param))
    async with simulation.system("there") as there, simulation.system("here") as here:
        for name, actor in {"counter": Counter, "slow": Slow, "postman": Postman, "diary": Diary}.items():
            await there.spawn(actor, name=name)
        yield Pair(there, here)
    assert not here.waits.snapshot()
    assert not there.waits.snapshot()
    gc.collect()
    await asyncio.sleep(1.0)
    assert len(asyncio.all_tasks()) == 1


tests = {name: test for name, test in vars(contract).items() if name.startswith("test_") and "pair" in inspect.signature(test).parameters}
assert len(tests) > 20
globals().update(tests)
