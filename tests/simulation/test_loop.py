"""The simulated loop: virtual time, no waiting, no descriptors, and a run that cannot go on says what it waits for."""

import asyncio
import itertools
import os
import socket

import pytest

from asyncrl.errors import SimulationStuck
from asyncrl.runtime.simulation import SimulatedHost, SimulatedLoop, Simulation
from tests.unit.runtime.runtime_actors import Slow


async def test_an_hour_passes_at_once_and_to_the_second() -> None:
    loop = asyncio.get_running_loop()
    start, real = loop.time(), os.times().elapsed
    await asyncio.sleep(3600)
    assert loop.time() - start == pytest.approx(3600, abs=0.001)
    assert os.times().elapsed - real < 60


async def test_timers_fire_in_the_order_of_their_times() -> None:
    fired: list[int] = []
    loop = asyncio.get_running_loop()
    for number in (3, 1, 2):
        loop.call_later(number, fired.append, number)
    await asyncio.sleep(4)
    assert fired == [1, 2, 3]


def test_timers_of_one_instant_fire_in_an_order_that_the_seed_draws() -> None:
    async def order() -> tuple[int, ...]:
        fired: list[int] = []
        for number in range(4):
            asyncio.get_running_loop().call_at(1.0, fired.append, number)
        await asyncio.sleep(2)
        return tuple(fired)

    def run(seed: int) -> tuple[int, ...]:
        with asyncio.Runner(loop_factory=lambda: SimulatedLoop(seed)) as runner:
            return runner.run(order())

    assert run(1) == run(1)
    assert len({run(seed) for seed in range(20)}) > 5


async def test_callbacks_of_a_turn_keep_the_order_that_asyncio_promises() -> None:
    called: list[int] = []
    for number in range(50):
        asyncio.get_running_loop().call_soon(called.append, number)
    await asyncio.sleep(0)
    assert called == list(range(50))


def test_sets_of_tasks_have_an_order_that_the_seed_draws() -> None:
    async def order() -> tuple[str, ...]:
        async with asyncio.TaskGroup() as group:
            tasks = {group.create_task(asyncio.sleep(0), name=str(number)) for number in range(8)}
        return tuple(task.get_name() for task in tasks)

    def run(seed: int) -> tuple[str, ...]:
        with asyncio.Runner(loop_factory=lambda: SimulatedLoop(seed)) as runner:
            return runner.run(order())

    assert run(1) == run(1)
    assert len({run(seed) for seed in range(5)}) > 1


async def test_a_loop_that_only_spins_still_gets_to_its_deadline() -> None:
    def spin() -> None:
        asyncio.get_running_loop().call_soon(spin)

    spin()
    await asyncio.sleep(0.01)
    assert asyncio.get_running_loop().time() < 0.02


async def test_there_are_no_descriptors_and_no_threads() -> None:
    loop = asyncio.get_running_loop()
    with socket.socket() as real, pytest.raises(RuntimeError, match="simulated network"):
        loop.add_reader(real, lambda: None)
    with pytest.raises(RuntimeError, match="simulated host"):
        await asyncio.to_thread(os.getpid)


def test_nothing_is_opened_by_a_simulated_loop() -> None:
    before = os.listdir("/proc/self/fd")
    loop = SimulatedLoop()
    assert os.listdir("/proc/self/fd") == before
    loop.close()


def test_a_deadlock_names_the_waits_and_the_tasks() -> None:
    async def wait() -> None:
        await asyncio.Event().wait()

    with pytest.raises(SimulationStuck, match="nothing is ready and no timer is set") as caught:
        Simulation(1).run(wait)
    assert any("wait > Event.wait (" in task for task in caught.value.tasks)


def test_a_run_without_an_end_names_its_waits() -> None:
    simulation = Simulation(1, limit=500.0)

    async def main() -> None:
        async with simulation.system("a") as system:
            slow = await system.spawn(Slow, name="slow")
            await slow.watched(1e6).call(Slow.hang)

    with pytest.raises(SimulationStuck, match="still running after 500 virtual seconds") as caught:
        simulation.run(main)
    assert any(wait.startswith("Slow.hang of slow@a since 0.0") for wait in caught.value.waits)
    assert caught.value.at >= 500.0


def test_what_a_run_leaves_behind_is_an_error() -> None:
    async def leaves_a_task() -> None:
        asyncio.get_running_loop().create_task(asyncio.sleep(9), name="forgotten")

    async def fails_in_a_callback() -> None:
        asyncio.get_running_loop().call_soon(dict[str, str]().__getitem__, "absent")

    with pytest.raises(RuntimeError, match="left behind: forgotten"):
        Simulation(1).run(leaves_a_task)
    with pytest.raises(RuntimeError, match="exception handler") as caught:
        Simulation(1).run(fails_in_a_callback)
    assert isinstance(caught.value.__cause__, KeyError)


async def test_the_clock_of_a_host_is_the_loops_and_its_wall_clock_is_not_to_be_trusted() -> None:
    host = SimulatedHost(1)
    assert host.clock() == asyncio.get_running_loop().time()
    walls = [host.wall_time() for _ in range(200)]
    assert any(later < earlier for earlier, later in itertools.pairwise(walls))
    assert host.clock() < 1.0


async def test_the_entropy_of_a_host_comes_from_its_seed_and_its_process() -> None:
    drawn = [SimulatedHost(seed, process).entropy(16) for seed, process in [(1, "a"), (1, "a"), (1, "b"), (2, "a")]]
    assert drawn[0] == drawn[1]
    assert len(set(drawn)) == 3
    assert all(len(each) == 16 for each in drawn)


async def test_a_blocking_function_takes_time_and_cannot_be_stopped() -> None:
    host, loop, ran = SimulatedHost(1), asyncio.get_running_loop(), list[int]()
    start = loop.time()
    assert await host.run_blocking(len, "four") == 4
    assert loop.time() > start
    with pytest.raises(ZeroDivisionError):
        await host.run_blocking(divmod, 1, 0)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0):
            await host.run_blocking(ran.append, 1)
    await asyncio.sleep(1)
    assert ran == [1]


async def test_files_are_in_memory_and_outlive_a_crash() -> None:
    files: dict[str, bytearray] = {}
    first = SimulatedHost(1, "a", files)
    with first.open_append("run/events") as file:
        assert file.write(b"one") == 3
        first.crash()
        file.write(b"lost")
    with SimulatedHost(1, "b", files).open_append("run/events") as file:
        file.write(b" two")
    assert files == {"run/events": bytearray(b"one two")}
    assert "run" not in os.listdir()
