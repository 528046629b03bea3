"""Processes that end: whoever waits for them hears of it at once, by name."""

import asyncio
import logging
import os
import signal

import pytest

from asyncrl.errors import ActorDied, CallFailed
from asyncrl.runtime import ActorSystem
from tests.faults.conftest import Job, StartPeer
from tests.faults.fault_actors import Ending, EndsInStart, RaisesInStop, Worker, into
from tests.faults.promises import promised
from tests.faults.systems import PULSE

SEEN = 1.0
"""Seconds within which the end of a process on this machine must be seen."""


@pytest.mark.parametrize("transport", ["tcp", pytest.param("ipc", marks=pytest.mark.faults)])
async def test_killing_the_callee_answers_its_callers(start_peer: StartPeer, caller: ActorSystem, transport: str) -> None:
    peer = await start_peer("there", transport)
    worker = peer.worker(caller)
    calls = [asyncio.ensure_future(worker.call(Worker.hang)) for _ in range(10)]
    await worker.call(Worker.has_started)
    async with promised(SEEN, f"kill -9 of a callee in mid-call, {transport}, unsupervised"):
        peer.signal(signal.SIGKILL)
        for call in calls:
            with pytest.raises(ActorDied, match="there died"):
                await call


async def test_killing_a_supervised_callee_answers_its_callers_with_the_signal(job: Job) -> None:
    worker = await job.system.spawn(Worker, name="worker", process="child")
    call = asyncio.ensure_future(worker.watched(60).call(Worker.hang))
    await worker.call(Worker.has_started)
    async with promised(SEEN, "kill -9 of a callee in mid-call, supervised"):
        os.kill(job.client.pid_of("child"), signal.SIGKILL)
        with pytest.raises(ActorDied, match=r"child died: signal 9 \(SIGKILL\)"):
            await call


@pytest.mark.parametrize(("how", "cause"), [("exit", "exit code 7"), ("kill", "SIGKILL")])
async def test_a_crash_while_streaming_gives_the_items_first_and_then_the_death(job: Job, how: Ending, cause: str) -> None:
    worker = await job.system.spawn(Worker, name="worker", process="child")
    seen: list[int] = []
    async with promised(SEEN, f"crash while streaming ({how})"):
        with pytest.raises(ActorDied, match=cause):
            await into(seen, worker.stream(Worker.items_and_end, 8, how))
    # What it had handed over before it died may be lost with it, but never out of order.
    assert seen == list(range(len(seen)))


@pytest.mark.parametrize("transport", ["ipc", pytest.param("tcp", marks=pytest.mark.faults)])
async def test_a_crash_while_streaming_is_seen_without_a_supervisor(start_peer: StartPeer, caller: ActorSystem, transport: str) -> None:
    worker = (await start_peer("there", transport)).worker(caller)
    async with promised(SEEN, f"crash while streaming, {transport}, unsupervised"):
        with pytest.raises(ActorDied, match="there died"):
            await into([], worker.stream(Worker.items_and_end, 3, "kill"))


@pytest.mark.parametrize("transport", ["tcp", pytest.param("ipc", marks=pytest.mark.faults)])
async def test_killing_the_caller_stops_its_calls_at_the_callee(start_peer: StartPeer, caller: ActorSystem, transport: str) -> None:
    there, other = await start_peer("there", transport), await start_peer("other", transport)
    worker = there.worker(caller)
    asks = asyncio.ensure_future(other.worker(caller).call(Worker.ask_to_hang, there.address))
    await worker.call(Worker.has_started)
    async with promised(PULSE, f"kill -9 of a caller: its call at the callee is cancelled, {transport}"):
        other.signal(signal.SIGKILL)
        await worker.call(Worker.was_cancelled)
    with pytest.raises(ActorDied):
        await asks


@pytest.mark.parametrize(
    ("how", "cause"), [pytest.param("exit", "exit code 7", marks=pytest.mark.faults), ("kill", "SIGKILL"), ("raise", "exit code 1")]
)
async def test_a_crash_in_on_start_of_a_child_is_told_with_its_last_lines(job: Job, how: Ending, cause: str) -> None:
    async with promised(3.0, f"crash in on_start ({how})"):
        with pytest.raises(ActorDied, match=cause) as caught:
            await job.system.spawn(EndsInStart, how, name="x", process="child")
    assert "\n".join(f"last words {number}" for number in range(5)) in caught.value.cause
    assert ("RuntimeError: broke" in caught.value.cause) is (how == "raise")


async def test_a_crash_in_on_start_of_a_local_actor_is_its_own_error_and_frees_the_name(caller: ActorSystem) -> None:
    with pytest.raises(RuntimeError, match="broke"):
        await caller.spawn(EndsInStart, "raise", name="x")
    assert await (await caller.spawn(Worker, name="x")).call(Worker.echo, 1) == 1


async def test_an_error_in_on_stop_is_logged_and_stops_nobody_else(caller: ActorSystem, caplog: pytest.LogCaptureFixture) -> None:
    worker = await caller.spawn(Worker, name="first")
    await caller.spawn(RaisesInStop, name="last")
    call = asyncio.ensure_future(worker.call(Worker.hang))
    await worker.call(Worker.has_started)
    async with promised(SEEN, "error in on_stop while another actor is called"):
        with caplog.at_level(logging.ERROR):
            await caller.close("over")
        with pytest.raises(ActorDied, match="over"):
            await call
    assert "cannot stop cleanly" in caplog.text


async def test_an_error_in_on_stop_of_a_child_stands_in_its_log(job: Job) -> None:
    actor = await job.system.spawn(RaisesInStop, name="x", process="child")
    assert await actor.call(RaisesInStop.echo, 1) == 1
    await job.system.close()
    async with promised(SEEN, "stop of a child whose on_stop raises"):
        await job.client.stop(grace=2.0)
    assert "cannot stop cleanly" in (job.logs / "child.log").read_text()


async def test_an_endpoint_that_ends_its_process_is_a_death_and_one_that_raises_is_not(job: Job) -> None:
    worker = await job.system.spawn(Worker, name="worker", process="child")
    with pytest.raises(CallFailed, match="broke"):
        await worker.call(Worker.end_now, "raise")
    async with promised(SEEN, "os._exit in an endpoint"):
        with pytest.raises(ActorDied, match="child died: exit code 7"):
            await worker.call(Worker.end_now, "exit")


async def test_an_endpoint_that_calls_sys_exit_ends_its_process(job: Job) -> None:
    worker = await job.system.spawn(Worker, name="worker", process="child")
    async with promised(SEEN, "sys.exit in an endpoint"):
        with pytest.raises(ActorDied, match="child died"):
            await worker.watched(60).call(Worker.end_now, "leave")
        assert (await job.deaths.get()).exit == "exit code 3"
