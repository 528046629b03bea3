"""Shared memory between real processes: what it saves, and what is left after a kill."""

import asyncio
import os
import signal
from pathlib import Path

import pytest

from asyncrl.errors import ActorDied
from asyncrl.runtime import ActorRef, ActorSystem, RealHost
from tests.unit.runtime.conftest import Job
from tests.unit.runtime.runtime_actors import Block
from tests.unit.runtime.shared_memory_actors import MIB, Keeper

DATA = bytes(range(256)) * 4096


async def keeper(job: Job, process: str = "child-0") -> ActorRef[Keeper]:
    """A keeper that has been sent enough for segments to be there on both sides."""
    ref = await job.system.spawn(Keeper, name=f"keeper of {process}", process=process)
    for _ in range(100):
        await ref.call(Keeper.echo, Block("warm", DATA))
        await ref.call(Keeper.make, MIB, 1)
        if job.system.shared_memory.stats().free_segments and (await ref.call(Keeper.stats)).free_segments:
            break
    return ref


def memory_of(pid: int) -> list[str]:
    """Memory files that a process has open or mapped."""
    found = [os.readlink(each) for each in Path(f"/proc/{pid}/fd").iterdir() if each.is_symlink()]
    found += Path(f"/proc/{pid}/maps").read_text().splitlines()
    return [each for each in found if "memfd:asyncrl" in each]


async def test_large_buffers_between_processes_are_copied_once_or_not_at_all(job: Job) -> None:
    ref = await keeper(job)
    before, there = job.system.shared_memory.stats(), await ref.call(Keeper.stats)
    for value in range(5):
        echoed = await ref.call(Keeper.echo, Block("x", bytes([value]) * MIB))
        made = await ref.call(Keeper.make, MIB, value)
        assert bytes(echoed.data) == bytes(made.data) == bytes([value]) * MIB
        del echoed, made
    after, then = job.system.shared_memory.stats(), await ref.call(Keeper.stats)
    # One copy here for each echo, none there; a buffer that was made in a segment takes that one.
    assert after.taken - before.taken == 5
    assert then.taken - there.taken == 5
    assert (after.refused - before.refused, then.refused - there.refused) == (0, 0)


async def test_echoes_leave_memory_and_segments_as_they_were(job: Job) -> None:
    ref = await keeper(job)
    for _ in range(10):
        await ref.call(Keeper.echo, Block("x", DATA))
    segments, resident = job.system.shared_memory.stats().segments, await ref.call(Keeper.resident)
    for _ in range(100):
        await ref.call(Keeper.echo, Block("x", DATA))
    assert job.system.shared_memory.stats().segments <= segments + 1
    assert await ref.call(Keeper.resident) < resident + 8 * MIB


@pytest.mark.faults
@pytest.mark.timeout(300)
async def test_a_thousand_echoes_of_16_mib_leave_memory_and_segments_as_they_were(job: Job) -> None:
    ref = await keeper(job)
    data = DATA * 16
    for _ in range(20):
        await ref.call(Keeper.echo, Block("x", data))
    segments, resident = job.system.shared_memory.stats().segments, await ref.call(Keeper.resident)
    for _ in range(1000):
        await ref.call(Keeper.echo, Block("x", data))
    assert job.system.shared_memory.stats().segments <= segments + 1
    assert await ref.call(Keeper.resident) < resident + 20 * MIB


async def test_a_receiver_that_is_killed_costs_the_segments_that_it_holds_and_nothing_else(job: Job) -> None:
    ref, other = await keeper(job), await keeper(job, "child-1")
    before = job.system.shared_memory.stats()
    pid = await ref.call(Keeper.keep, Block("a", DATA))
    await ref.call(Keeper.keep, Block("b", DATA))
    os.kill(pid, signal.SIGKILL)
    await job.deaths.get()
    with pytest.raises(ActorDied):
        await ref.call(Keeper.pid)
    after = job.system.shared_memory.stats()
    assert 1 <= after.abandoned - before.abandoned <= 2
    assert after.free_segments == after.segments
    echoed = await other.call(Keeper.echo, Block("x", DATA))
    assert bytes(echoed.data) == DATA


async def test_what_a_killed_sender_lent_stays_readable_and_is_freed_with_its_last_view(job: Job) -> None:
    ref = await keeper(job)
    made = await ref.call(Keeper.make, MIB, 7)
    pid = await ref.call(Keeper.pid)
    assert memory_of(pid)
    os.kill(pid, signal.SIGKILL)
    await job.deaths.get()
    mapped = len(memory_of(os.getpid()))
    assert bytes(made.data) == b"\7" * MIB
    made.data[:4] = b"mine"
    del made
    assert len(memory_of(os.getpid())) < mapped


async def test_what_is_adopted_outlives_its_sender_and_is_passed_on(job: Job) -> None:
    first, second = await keeper(job), await keeper(job, "child-1")
    await first.call(Keeper.keep, Block("a", DATA))
    given = job.system.shared_memory.stats().given
    assert await first.call(Keeper.adopt, "a")
    assert not await first.call(Keeper.adopt, "a")
    assert job.system.shared_memory.stats().given == given + 1
    assert await second.call(Keeper.fetch, first.address, "a")
    os.kill(await first.call(Keeper.pid), signal.SIGKILL)
    await job.deaths.get()
    shown = await second.call(Keeper.show, "a")
    assert bytes(shown.data) == DATA


async def test_a_child_has_the_budget_of_its_parent_and_none_means_frames(folder: str, job: Job) -> None:
    async with ActorSystem.bind(
        "poor", f"ipc://{folder}/poor.sock", host=RealHost(), token=job.client.token, attempt="a1", shared_memory=0
    ) as poor:
        rich = await keeper(job)
        assert (await rich.call(Keeper.stats)).budget == job.system.shared_memory.budget > 0
        for _ in range(3):
            echoed = await poor.ref(rich.address, Keeper).call(Keeper.echo, Block("x", DATA))
            made = await poor.ref(rich.address, Keeper).call(Keeper.make, MIB, 3)
            assert (bytes(echoed.data), bytes(made.data)) == (DATA, b"\3" * MIB)
        assert poor.shared_memory.stats().segments == 0


async def test_nothing_is_left_of_a_system_that_was_closed(folder: str, job: Job) -> None:
    ref = await keeper(job)
    async with ActorSystem.bind("guest", f"ipc://{folder}/guest.sock", host=RealHost(), token=job.client.token, attempt="a1") as guest:
        there = guest.ref(ref.address, Keeper)
        for _ in range(5):
            await there.call(Keeper.keep, Block("a", DATA))
            held = await there.call(Keeper.show, "a")
            await asyncio.sleep(0)
        assert guest.shared_memory.stats().segments > 0
    assert guest.shared_memory.stats().segments == 0
    assert bytes(held.data) == DATA
    del held
    shown = await ref.call(Keeper.show, "a")
    assert bytes(shown.data) == DATA
