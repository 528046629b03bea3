"""After faults and cancellations all credit comes back, to the last call."""

import asyncio
from random import Random

import pytest

from asyncrl.errors import ActorError
from asyncrl.runtime.simulation import Faults, Simulation
from asyncrl.runtime.site import CREDIT
from tests.unit.runtime.runtime_actors import Slow

MORE = 100


@pytest.mark.parametrize("seed", [1, 2])
def test_exactly_1024_calls_are_out_at_a_time_after_a_stormy_hour(seed: int) -> None:
    simulation = Simulation(seed, Faults(heartbeat=5.0, lengths=(0.05, 20.0)))
    random = Random(seed)

    async def main() -> None:
        async with simulation.system("there") as there, simulation.system("here") as here:
            await there.spawn(Slow, name="slow")
            slow = here.ref(there.address("slow"), Slow).with_deadline(100.0)
            simulation.network.disturb(rate=0.02)
            for _ in range(400):
                call = asyncio.ensure_future(slow.with_deadline(3.0).call(random.choice([Slow.hang, Slow.made])))
                asyncio.get_running_loop().call_later(random.expovariate(0.5), call.cancel)
                await asyncio.sleep(9.0)
                assert call.cancelled() or call.exception() is None or isinstance(call.exception(), ActorError)
            simulation.network.heal()
            await asyncio.sleep(20.0)
            calls = [asyncio.ensure_future(slow.call(Slow.wait_release)) for _ in range(CREDIT + MORE)]
            await asyncio.sleep(1.0)
            waits = [wait.what for wait in here.waits.snapshot()]
            assert (waits.count("Slow.wait_release"), waits.count("credit for Slow.wait_release")) == (CREDIT, MORE)
            await there.ref(there.address("slow"), Slow).call(Slow.let_go)
            assert await asyncio.gather(*calls) == ["released"] * (CREDIT + MORE)

    simulation.run(main)
