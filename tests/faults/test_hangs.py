"""Injected hangs of a process and of the runtime: each ends, in time, with words that say who, what and how long."""

import asyncio
import os
import re
import signal
import socket
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from asyncrl.errors import ActorDied, CallTimedOut, ConfigError, Undeliverable
from asyncrl.runtime import ActorRef, ActorSystem, Keyring, RealHost, SupervisorClient, Watching, outgoing
from asyncrl.runtime.liveness import Liveness
from tests.faults.byte_proxy import ByteProxy
from tests.faults.conftest import ROOT, Job, StartPeer
from tests.faults.fault_actors import Worker
from tests.faults.hang_actors import Hanging
from tests.faults.message_proxy import Chaos, MessageProxy
from tests.faults.promises import promised

STALLED, EXIT = 0.2, 0.5
"""Seconds, where a process has 1.0 and 10: until a silent loop is reported, and until a shutdown is forced."""


@pytest.fixture
async def job(folder: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Job]:
    """A supervisor and a system whose children report early and are forced to leave early."""
    monkeypatch.setenv("PYTHONPATH", ROOT)
    logs = tmp_path / "logs"
    watching = Watching(exit_within=EXIT, stacks=str(logs))
    client = SupervisorClient.start(
        host=RealHost(), folder=folder, log_folder=str(logs), attempt="a1", env_allow=["PYTHONPATH"], watching=watching
    )
    deaths: asyncio.Queue[object] = asyncio.Queue()
    client.attach_loop(deaths.put_nowait)
    liveness = Liveness(heartbeat=0.2, dead_after=0.8, stalled_after=STALLED)
    endpoint = f"ipc://{folder}/rank0.sock"
    async with ActorSystem.bind("rank0", endpoint, host=RealHost(), attempt="a1", token=client.token, liveness=liveness) as system:
        system.attach(client)
        yield Job(client, system, deaths, logs)  # type: ignore[arg-type]
    await client.stop(grace=2.0)


@pytest.fixture
async def hanging(job: Job) -> ActorRef[Hanging]:
    return await job.system.spawn(Hanging, name="hanging", process="agent-0")


async def log_of(job: Job, process: str) -> str:
    """All that a process has said; it is stopped for that."""
    await job.system.stop_process(process)
    return (job.logs / f"{process}.log").read_text()


async def test_h06_a_reply_that_is_lost_is_named_with_peer_call_and_seconds(start_peer: StartPeer, caller: ActorSystem) -> None:
    peer = await start_peer()
    with MessageProxy(peer.address.endpoint) as proxy:
        worker = peer.worker(caller, proxy.endpoint)
        assert await worker.call(Worker.echo, 1) == 1
        proxy.to_caller = Chaos(drop=1.0, kinds=("reply",))
        async with promised(0.5, "H06 reply lost, call with a deadline of 0.5 s"):
            with pytest.raises(CallTimedOut, match=r"^worker@there did not answer Worker.echo within 0.5 s$"):
                await worker.with_deadline(0.5).call(Worker.echo, 2)


@pytest.mark.faults
async def test_h06_an_idempotent_call_is_sent_again_when_its_connection_breaks_and_says_how_often(
    start_peer: StartPeer, caller: ActorSystem
) -> None:
    peer = await start_peer()
    async with ByteProxy(peer.address.endpoint) as proxy:
        worker = peer.worker(caller, proxy.endpoint)
        assert await worker.call(Worker.echo, 1) == 1
        proxy.to_caller.swallow = True
        async with promised(1.0, "H06 reply lost twice, idempotent call with a deadline of 1 s"):
            call = asyncio.ensure_future(worker.with_deadline(1.0).call(Worker.idempotent_effect, "once"))
            while await peer.worker(caller).call(Worker.all_effects) != {"once": 1}:
                pass
            proxy.cut()
            with pytest.raises(CallTimedOut, match=r"^worker@there did not answer Worker.idempotent_effect \(sent 2 times\) within 1 s$"):
                await call
    assert await peer.worker(caller).call(Worker.all_effects) == {"once": 1}


async def test_h07_a_blocking_send_in_the_event_loop_is_reported_with_its_place_and_its_length(
    job: Job, hanging: ActorRef[Hanging]
) -> None:
    async with promised(1.2 + STALLED, "H07 loop blocked for 1.2 s in a send"):
        assert await hanging.call(Hanging.fill_queue, 1.2) == "full"
    said = await log_of(job, "agent-0")
    assert re.search(r"event loop of agent-0 blocked \d\.\d s in .*\(from tests/faults/hang_actors.py:\d+ fill_queue\)", said)
    assert re.search(r"blocked .*; its stack:\n(?s:.*) in fill_queue\n", said)
    assert re.search(r"event loop of agent-0 was blocked [01]\.\d s in .* fill_queue\); it runs again", said)
    assert job.deaths.empty()


async def test_h08_a_starved_loop_is_reported_and_is_not_taken_for_dead(job: Job, hanging: ActorRef[Hanging]) -> None:
    # Longer than the verdict on a silent peer: its heartbeats are answered beside the loop.
    async with promised(1.5, "H08 loop starved for 1.5 s, beyond the verdict of 0.8 s"):
        assert await hanging.watched(30).call(Hanging.compute, 1.5) >= 1.5
    assert await hanging.call(Hanging.echo, 3) == 3
    said = await log_of(job, "agent-0")
    assert re.search(r"event loop of agent-0 blocked \d\.\d s in tests/faults/hang_actors.py:\d+ compute", said)
    assert job.deaths.empty()


@pytest.mark.faults
async def test_h08_c_code_that_holds_the_interpreter_is_reported_once_it_lets_go(job: Job, hanging: ActorRef[Hanging]) -> None:
    assert await hanging.watched(60).call(Hanging.hold_the_lock, 1.5) >= 1.5
    said = await log_of(job, "agent-0")
    why = "as were all other threads: a frozen process, or code that holds the interpreter lock"
    assert re.search(rf"event loop of agent-0 blocked \d\.\d s, {why}; it is now in ", said)
    assert job.deaths.empty()


@pytest.mark.faults
async def test_h08_an_answer_that_came_while_the_caller_was_starved_is_not_a_timeout(
    job: Job, hanging: ActorRef[Hanging], start_peer: StartPeer
) -> None:
    other = await job.system.spawn(Worker, name="worker", process="agent-1")
    assert await hanging.call(Hanging.starve_own_call, other.address, 0.3, 1.0) == 7


async def test_h09_a_task_that_nobody_awaited_ends_the_process_with_its_own_traceback(job: Job, hanging: ActorRef[Hanging]) -> None:
    async with promised(1.0, "H09 task lost"):
        await hanging.call(Hanging.lose_a_task)
        death = await job.deaths.get()
    assert (death.name, death.exit) == ("agent-0", "exit code 1")
    lines = "\n".join(death.last_lines)
    assert "RuntimeError: nobody waited for this" in lines
    assert re.search(r'hang_actors.py", line \d+, in fails_unseen', lines)
    with pytest.raises(ActorDied, match="agent-0 died: exit code 1"):
        await hanging.call(Hanging.echo, 1)


async def test_h16_a_fork_that_uses_the_connections_of_its_parent_is_refused_by_name(job: Job, hanging: ActorRef[Hanging]) -> None:
    other = await job.system.spawn(Worker, name="worker", process="agent-1")
    async with promised(1.0, "H16 fork after start"):
        said = await hanging.call(Hanging.fork_and_call, other.address)
    assert said.startswith("Undeliverable: cannot deliver to worker@agent-1: forked after start: this process is a copy")
    # The parent's connections are as they were.
    assert await hanging.call(Hanging.echo, 1) == 1
    assert await hanging.call(Hanging.starve_own_call, other.address, 5.0, 0.0) == 7


async def test_h17_a_port_that_is_taken_is_named_with_who_holds_it(start_peer: StartPeer) -> None:
    peer = await start_peer()
    port = peer.address.endpoint.rpartition(":")[2]
    async with promised(1.0, "H17 port held"):
        with pytest.raises(ConfigError, match=rf"port {port} is held by pid {peer.pid} of job '.* -m tests.faults.peer .*', started at"):
            ActorSystem.bind("here", peer.address.endpoint, host=RealHost())
    peer.signal(signal.SIGKILL)
    await asyncio.to_thread(peer.process.wait)
    async with ActorSystem.bind("here", peer.address.endpoint, host=RealHost()) as system:
        assert system.endpoint == peer.address.endpoint


async def test_h18_a_shutdown_that_hangs_is_forced_and_says_what_it_waited_for(job: Job, hanging: ActorRef[Hanging]) -> None:
    call = asyncio.ensure_future(hanging.call(Hanging.hold_a_thread))
    await hanging.call(Hanging.echo, 1)
    async with promised(EXIT + 1.0, f"H18 shutdown with a thread that never ends, forced after {EXIT} s"):
        os.kill(job.client.pid_of("agent-0"), signal.SIGTERM)
        death = await job.deaths.get()
    assert (death.name, death.exit) == ("agent-0", "exit code 1")
    said = (job.logs / "agent-0.log").read_text()
    (first,) = [line for line in said.splitlines() if line.startswith("forced exit")]
    assert first.startswith(f"forced exit after {EXIT:g} s: still waiting for ")
    assert "task hanging.hold_a_thread" in first
    assert re.search(r"thread \w+_0 in .*threading.py:\d+ wait \(from tests/faults/hang_actors.py:\d+ hold_a_thread\)", first)
    with pytest.raises(ActorDied):
        await call


async def test_h19_a_peer_that_holds_another_key_or_token_is_named_within_three_seconds(caller: ActorSystem) -> None:
    here, there = (Keyring.from_job_key(key, "rank") for key in (b"a" * 32, b"b" * 32))
    endpoint = "tcp://127.0.0.1:*"
    async with (
        ActorSystem.bind("here", endpoint, host=RealHost(), keys=here) as first,
        ActorSystem.bind("there", endpoint, host=RealHost(), keys=there) as second,
    ):
        ref: ActorRef[Worker] = first.ref(second.address("worker"), Worker)
        async with promised(3.0, "H19 another job key"):
            with pytest.raises(Undeliverable, match=rf"there: the job key differs: {second.endpoint} has another key, or none"):
                await ref.call(Worker.echo, 1)
        token: ActorRef[Worker] = caller.ref(second.address("worker"), Worker)
        assert second.refusals
        async with promised(3.0, "H19 no key at all"):
            with pytest.raises(Undeliverable, match="the job key differs: this process has none"):
                await token.call(Worker.echo, 1)


async def test_h19_a_peer_of_another_version_or_job_is_named_within_three_seconds(caller: ActorSystem, folder: str) -> None:
    refusals = {
        ("there", "a1", b"x" * 32): "there: the connection was refused: the job token differs",
        ("old", "a0", b"t" * 32): "old: the connection was refused: attempt 'a1' calls attempt 'a0'",
    }
    for (process, attempt, token), refusal in refusals.items():
        system = ActorSystem.bind(process, f"ipc://{folder}/{process}.sock", host=RealHost(), attempt=attempt, token=token)
        async with system, promised(3.0, f"H19 {refusal}"):
            with pytest.raises(Undeliverable, match=refusal):
                await caller.ref(system.address("worker"), Worker).call(Worker.echo, 1)


async def test_h19_what_accepts_connections_and_never_registers_is_named(caller: ActorSystem, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outgoing, "WELCOME_SECONDS", 0.5)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        endpoint = f"tcp://127.0.0.1:{silent.getsockname()[1]}"
        address = caller.address("worker")
        address = type(address)("there", endpoint, "worker", "a1", 0)
        async with promised(0.5, "H19 a peer that never registers, registration within 0.5 s"):
            with pytest.raises(Undeliverable, match=rf"there: no welcome within 0.5 s: .*{endpoint}"):
                await caller.ref(address, Worker).call(Worker.echo, 1)
