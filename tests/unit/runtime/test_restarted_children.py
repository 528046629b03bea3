"""Real children that die, freeze, cannot start again or are stopped, and the references to them."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from asyncrl.errors import ActorDied, CallTimedOut
from asyncrl.runtime import ActorRef, ActorSystem, Liveness, ProcessDeath, Restarted
from tests.unit.runtime.restart_actors import Mortal, Starter
from tests.unit.runtime.runtime_actors import Caller, Counter, Slow

QUICK = Liveness(heartbeat=0.2, dead_after=0.6)


class Job:
    """A system with a supervisor of its own, and what was told of its children."""

    def __init__(self, system: ActorSystem, logs: Path) -> None:
        self.system, self.logs = system, logs
        self.deaths: asyncio.Queue[ProcessDeath] = asyncio.Queue()
        self.restarts: asyncio.Queue[Restarted] = asyncio.Queue()
        system.children.on_death = self.deaths.put_nowait
        system.children.on_restart = self.restarts.put_nowait


@pytest.fixture
async def job(tmp_path: Path) -> AsyncIterator[Job]:
    async with ActorSystem.start("main", log_folder=str(tmp_path / "logs"), liveness=QUICK) as system:
        yield Job(system, tmp_path / "logs")


async def kill(ref: ActorRef[Any]) -> int:
    _, pid = await ref.call(Mortal.life)
    os.kill(pid, signal.SIGKILL)
    return pid


def comm(pid: int) -> str:
    """The short name of a process."""
    return Path(f"/proc/{pid}/comm").read_text().strip()


async def test_a_killed_child_is_started_again_and_its_references_go_on(job: Job) -> None:
    ref = await job.system.spawn(Mortal, name="mortal", process="child", restarts=1)
    in_flight = asyncio.ensure_future(ref.call(Slow.hang))
    await ref.call(Slow.has_started)
    pid = await kill(ref)
    async with asyncio.timeout(3):
        with pytest.raises(ActorDied, match=r"child died: signal 9 \(SIGKILL\)"):
            await in_flight
    later = asyncio.ensure_future(ref.call(Mortal.life))
    await asyncio.sleep(0)
    assert "restart of child" in [wait.what for wait in job.system.waits.snapshot()]
    generation, new = await later
    assert (generation, new != pid) == (1, True)
    assert [item async for item in ref.stream(Slow.count, 3)] == [0, 1, 2]
    death, restarted = await job.deaths.get(), await job.restarts.get()
    assert (death.name, death.pid, death.exit, death.generation, death.restarting) == ("child", pid, "signal 9 (SIGKILL)", 0, True)
    assert (restarted.name, restarted.pid, restarted.address.generation) == ("child", new, 1)
    # An ipc socket keeps its path.
    assert restarted.address.endpoint == ref.address.endpoint


async def test_over_budget_the_death_is_final_and_the_first_cause_is_told(job: Job, caplog: pytest.LogCaptureFixture) -> None:
    ref = await job.system.spawn(Mortal, name="mortal", process="child", restarts=1)
    with pytest.raises(ActorDied, match="exit code 3"):
        await ref.call(Mortal.leave, 3)
    # An exit that nobody asked for is a death, whatever its code.
    with pytest.raises(ActorDied, match="exit code 0"):
        await ref.call(Mortal.leave, 0)
    cause = r"child died: exit code 3 \(restarts that did not help: 1; the last life: exit code 0\)"
    with pytest.raises(ActorDied, match=cause):
        await ref.call(Mortal.life)
    first, last = await job.deaths.get(), await job.deaths.get()
    assert (first.restarting, first.last_lines) == (True, ["leaving with 3 in life 0"])
    # The last lines of a life are its own, although both lives write to one file.
    assert (last.restarting, last.restarts, last.last_lines) == (False, 1, ["leaving with 0 in life 1"])
    assert last.cause_lines == ["leaving with 3 in life 0"]
    assert "exit code 3 (restarts that did not help: 1; the last life: exit code 0)\n  | leaving with 3 in life 0" in caplog.text
    assert (job.logs / "child.log").read_text() == "leaving with 3 in life 0\nleaving with 0 in life 1\n"
    # The name is free for another child, and its generation goes on.
    again = await job.system.spawn(Mortal, name="mortal", process="child")
    assert (await again.call(Mortal.life))[0] == 2


async def test_a_crash_in_on_start_counts_while_restarting(job: Job, tmp_path: Path) -> None:
    path = tmp_path / "broken"
    path.touch()
    ref = await job.system.spawn(Starter, str(path), name="starter", process="child", restarts=2)
    await kill(ref)
    deaths = [await job.deaths.get()]
    with pytest.raises(ActorDied, match=r"signal 9 \(SIGKILL\) \(restarts that did not help: 2; .* before it was ready: exit code 7\)"):
        await ref.call(Mortal.life)
    deaths += [await job.deaths.get() for _ in range(2)]
    assert [death.restarting for death in deaths] == [True, True, False]
    assert [death.generation for death in deaths] == [0, 1, 2]
    assert deaths[1].last_lines[-1] == "cannot start again"
    assert job.restarts.empty()


async def test_a_process_that_has_no_supervisor_follows_a_reference_too(job: Job) -> None:
    counter = await job.system.spawn(Counter, name="counter", process="counter", restarts=1)
    caller = await job.system.spawn(Caller, name="caller", process="caller")
    assert await caller.call(Caller.relay, counter.address, 3) == 3
    os.kill(await counter.call(Counter.pid), signal.SIGKILL)
    assert (await job.deaths.get()).restarting
    # It waits for the restart, or has just lost its connection: both end at the new life, which has counted nothing.
    assert await caller.call(Caller.relay_again, counter.address, 4) == 4
    found = await caller.call(Caller.find, "counter")
    assert (found.process, found.generation) == ("counter", 1)


async def test_a_child_that_is_stopped_on_purpose_does_not_come_again(job: Job) -> None:
    ref = await job.system.spawn(Mortal, name="mortal", process="child", restarts=3)
    _, pid = await ref.call(Mortal.life)
    in_flight = asyncio.ensure_future(ref.call(Slow.hang))
    await ref.call(Slow.has_started)
    await job.system.stop_process("child")
    assert not psutil.pid_exists(pid)
    with pytest.raises(ActorDied):
        await in_flight
    with pytest.raises(ActorDied, match="child died: it was stopped"):
        await ref.call(Mortal.life)
    assert job.deaths.empty()
    with pytest.raises(KeyError, match="child"):
        await job.system.stop_process("child")
    # One that is deaf to SIGTERM.
    again = await job.system.spawn(Mortal, name="mortal", process="child")
    _, pid = await again.call(Mortal.life)
    os.kill(pid, signal.SIGSTOP)
    await job.system.stop_process("child", grace=0.2)
    assert not psutil.pid_exists(pid)


async def test_a_frozen_child_is_replaced(job: Job) -> None:
    ref = await job.system.spawn(Mortal, name="mortal", process="child", restarts=1)
    caller = await job.system.spawn(Caller, name="caller", process="caller")
    _, pid = await ref.call(Mortal.life)
    call = asyncio.ensure_future(ref.watched(30).call(Slow.hang))
    await ref.call(Slow.has_started)
    assert await caller.call(Caller.relay, ref.address, 1) == 1
    os.kill(pid, signal.SIGSTOP)
    sibling = asyncio.ensure_future(caller.call(Caller.relay_again, ref.address, 2))
    # Promised: 0.6 s until the connection counts as lost, and 0.2 s until a second one was not answered.
    async with asyncio.timeout(3 * 0.8):
        with pytest.raises(ActorDied, match="child died: "):
            await call
        death = await job.deaths.get()
    assert (death.pid, death.restarting) == (pid, True)
    assert death.exit == "frozen: connection lost, and no answer to another within 0.2 s"
    assert (await ref.call(Mortal.life))[0] == 1
    assert not psutil.pid_exists(pid)
    assert await sibling == 2
    assert job.deaths.empty()


async def test_a_frozen_child_without_restarts_fails_its_calls_and_is_left_alone(job: Job) -> None:
    ref = await job.system.spawn(Mortal, name="mortal", process="child")
    _, pid = await ref.call(Mortal.life)
    os.kill(pid, signal.SIGSTOP)
    with pytest.raises(ActorDied, match="child died: connection lost"):
        await ref.watched(30).call(Mortal.life)
    with pytest.raises(CallTimedOut):
        await ref.with_deadline(0.3).call(Mortal.life)
    os.kill(pid, signal.SIGCONT)
    assert await ref.with_deadline(20).call(Mortal.life) == (0, pid)
    assert job.deaths.empty()


async def test_a_name_shows_in_ps_and_a_child_may_not_have_that_of_its_parent(job: Job) -> None:
    ref = await job.system.spawn(Mortal, name="a.name-of_its_own", process="new")
    _, pid = await ref.call(Mortal.life)
    child = psutil.Process(pid)
    assert "asyncrl:a.name-of_its_own" in child.cmdline()
    assert comm(pid) == "a.name-of_its_o"
    assert comm(child.ppid()) == "supervisor"
    with pytest.raises(ValueError, match="main is the name of this process"):
        await job.system.spawn(Mortal, name="main", process="new")


async def test_a_spawn_that_is_given_up_leaves_no_child(job: Job) -> None:
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.05):
            await job.system.spawn(Mortal, name="mortal", process="child")
    ref = await job.system.spawn(Mortal, name="mortal", process="child")
    assert (await ref.call(Mortal.life))[0] == 1
    assert job.deaths.empty()
