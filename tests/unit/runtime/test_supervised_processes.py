"""Real children under a real supervisor."""

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
from pathlib import Path

import msgspec
import psutil
import pytest

from asyncrl.errors import ActorDied, Undeliverable, WireError
from asyncrl.runtime import ActorRef, ActorSystem, ProcessSpec, RealHost, Restarted, SupervisorClient, encode
from asyncrl.runtime.directory import Directory
from asyncrl.runtime.whereabouts import KnownProcesses, up
from tests.unit.runtime.conftest import ROOT, Job
from tests.unit.runtime.restart_actors import Pusher
from tests.unit.runtime.runtime_actors import Block, Broken, Caller, Counter, Exits, Graceful, Never, Slow


def exists(path: str) -> bool:
    return Path(path).exists()


def settle(future: "asyncio.Future[None]") -> None:
    if not future.done():
        future.set_result(None)


async def gone(pids: list[int], seconds: float) -> None:
    """Waits for the end of processes that are not ours."""
    loop = asyncio.get_running_loop()
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            pidfd = os.pidfd_open(pid)
            ended: asyncio.Future[None] = loop.create_future()
            loop.add_reader(pidfd, settle, ended)
            try:
                async with asyncio.timeout(seconds):
                    await ended
            finally:
                loop.remove_reader(pidfd)
                os.close(pidfd)


async def test_a_child_serves_calls_in_a_process_of_its_own(job: Job) -> None:
    ref = await job.system.spawn(Counter, 5, name="counter", process="child-0")
    assert await ref.call(Counter.add, 2) == 7
    assert await ref.call(Counter.pid) == job.client.pid_of("child-0")
    child = psutil.Process(job.client.pid_of("child-0"))
    assert "asyncrl:child-0" in child.cmdline()
    assert (child.ppid(), os.getpgid(child.pid)) == (job.client.pid, child.pid)
    assert os.getsid(job.client.pid) == job.client.pid
    assert os.readlink(f"/proc/{child.pid}/fd/0") == "/dev/null"
    # The token reaches the child by a descriptor alone.
    shown = " ".join(child.cmdline()) + str(child.environ())
    assert job.client.token.hex() not in shown
    assert repr(job.client.token) not in shown


async def test_children_of_a_job_on_several_nodes_listen_at_a_tcp_port_of_the_interface_alone(
    folder: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", ROOT)
    client = SupervisorClient.start(
        host=RealHost(), folder=folder, log_folder=str(tmp_path), attempt="a1", env_allow=["PYTHONPATH"], interface="127.0.0.1", name="s-1"
    )
    client.attach_loop(lambda death: None)
    async with ActorSystem.bind("rank0", "tcp://127.0.0.1:*", host=RealHost(), attempt="a1", token=client.token) as system:
        system.attach(client)
        ref = await system.spawn(Counter, 5, name="counter", process="child-0")
        assert ref.address.endpoint.startswith("tcp://127.0.0.1:")
        assert await ref.call(Counter.add, 2) == 7
        child = psutil.Process(client.pid_of("child-0"))
        assert {seen.laddr.ip for seen in child.net_connections("inet") if seen.status == psutil.CONN_LISTEN} == {"127.0.0.1"}
        assert "asyncrl:s-1" in psutil.Process(client.pid).cmdline()
        async with ActorSystem.bind("stranger", "tcp://127.0.0.1:*", host=RealHost(), attempt="a1", token=b"x" * 32) as stranger:
            with pytest.raises(Undeliverable, match="the job token differs"):
                await stranger.ref(ref.address, Counter).call(Counter.add, 1)
    await client.stop(grace=2.0)
    assert {"s-1.log", "child-0.log"} <= set(os.listdir(tmp_path))


async def test_a_farewell_gives_every_caller_the_cause(folder: str) -> None:
    async with ActorSystem.bind("caller", f"ipc://{folder}/a.sock", host=RealHost()) as caller:
        callee = ActorSystem.bind("callee", f"ipc://{folder}/b.sock", host=RealHost())
        await callee.spawn(Slow, name="slow")
        ref: ActorRef[Slow] = caller.ref(callee.address("slow"), Slow)
        call = asyncio.ensure_future(ref.call(Slow.hang))
        await ref.call(Slow.has_started)
        callee.farewell("left: the disk is full")
        with pytest.raises(ActorDied) as caught:
            await call
        assert (caught.value.name, caught.value.cause) == ("callee", "left: the disk is full")
        await callee.close()


async def test_children_reach_one_another_and_see_only_allowed_variables(job: Job) -> None:
    counter = await job.system.spawn(Counter, name="counter", process="child-0")
    caller = await job.system.spawn(Caller, name="caller", process="child-1")
    assert await caller.call(Caller.relay, counter.address, 3) == 3
    seen = await caller.call(Caller.environment, ["PYTHONPATH", "SECRET_OF_THE_PARENT"])
    assert seen == {"PYTHONPATH": ROOT}
    assert not await caller.call(Caller.loads_torch)
    os.kill(job.client.pid_of("child-0"), signal.SIGKILL)
    await job.deaths.get()
    with pytest.raises(ActorDied, match="child-0 died"):
        await counter.call(Counter.add, 1)
    with pytest.raises(ActorDied):
        await caller.with_deadline(5).call(Caller.relay, counter.address, 3)


async def test_a_killed_child_fails_its_pending_calls_by_name_and_signal(job: Job) -> None:
    ref = await job.system.spawn(Slow, name="slow", process="child-0")
    call = asyncio.ensure_future(ref.watched(60).call(Slow.hang))
    stream = ref.stream(Slow.count, 100)
    assert await anext(stream) == 0
    await ref.call(Slow.has_started)
    pid = job.client.pid_of("child-0")
    os.kill(pid, signal.SIGKILL)
    async with asyncio.timeout(2):
        with pytest.raises(ActorDied, match=r"child-0 died: signal 9 \(SIGKILL\)"):
            await call
        with pytest.raises(ActorDied, match="SIGKILL"):
            async for _ in stream:
                pass
        death = await job.deaths.get()
    assert (death.name, death.pid, death.exit) == ("child-0", pid, "signal 9 (SIGKILL)")
    with pytest.raises(ActorDied, match="SIGKILL"):
        await ref.call(Slow.made)
    assert job.deaths.empty()


@pytest.mark.parametrize(
    ("cls", "args", "cause", "words"),
    [
        (Broken, (), "exit code 1", "the last words of Broken"),
        (Exits, (7,), "exit code 7", "about to exit"),
    ],
)
async def test_a_crash_at_start_is_reported_with_status_and_last_words(
    job: Job, cls: type[Broken], args: tuple[int, ...], cause: str, words: str
) -> None:
    with pytest.raises(ActorDied, match=cause) as caught:
        await job.system.spawn(cls, *args, name="x", process="bad")
    assert words in caught.value.cause
    # The name is free again.
    assert await (await job.system.spawn(Counter, name="x", process="bad")).call(Counter.add, 1) == 1


async def test_a_child_that_never_becomes_ready_meets_its_deadline(job: Job) -> None:
    spec = ProcessSpec("never", f"{Never.__module__}:Never", encode([])[0], {}, ready_within=1.5)
    with pytest.raises(ActorDied, match=r"not ready within 1\.5 s"):
        await job.client.spawn(spec)


async def test_what_cannot_be_a_child_is_refused_before_it_starts(job: Job) -> None:
    with pytest.raises(WireError, match="arguments"):
        await job.system.spawn(Counter, object(), name="x", process="x")
    with pytest.raises(ActorDied, match="a process name has"):
        await job.system.spawn(Counter, name="x", process="../x")
    await job.system.spawn(Counter, name="x", process="x")
    with pytest.raises(ActorDied, match="taken"):
        await job.system.spawn(Counter, name="y", process="x")

    class Local(Counter):
        """Cannot be imported."""

    with pytest.raises(WireError, match="cannot be imported"):
        await job.system.spawn(Local, name="z", process="z")
    bad = ProcessSpec("bad", f"{Counter.__module__}:Counter", encode(["text"])[0], {})
    with pytest.raises(ActorDied, match=r"Counter.__init__\(start\): Expected `int`, got `str`"):
        await job.client.spawn(bad)
    with pytest.raises(ActorDied, match="is no Actor class"):
        await job.client.spawn(ProcessSpec("bad", f"{Block.__module__}:Block", encode([])[0], {}))


async def test_stop_lets_actors_stop_and_leaves_nothing(job: Job, tmp_path: Path, folder: str) -> None:
    path = str(tmp_path / "stopped")
    await job.system.spawn(Graceful, path, name="g", process="graceful")
    pids = [job.client.pid, job.client.pid_of("graceful")]
    await job.system.close()
    await job.client.stop()
    assert exists(path)
    assert not [pid for pid in pids if psutil.pid_exists(pid)]
    assert not exists(folder)
    assert job.deaths.empty()
    with pytest.raises(ActorDied, match="has left"):
        await job.client.spawn(ProcessSpec("x", "a:b", b"", {}))


async def test_a_child_that_ignores_sigterm_is_killed_after_the_grace(job: Job) -> None:
    await job.system.spawn(Counter, name="c", process="frozen")
    pid = job.client.pid_of("frozen")
    os.kill(pid, signal.SIGSTOP)
    await job.client.stop(grace=0.3)
    assert not psutil.pid_exists(pid)


async def test_killing_the_supervisor_kills_its_children_and_is_reported(job: Job) -> None:
    ref = await job.system.spawn(Slow, name="slow", process="child-0")
    call = asyncio.ensure_future(ref.call(Slow.hang))
    await ref.call(Slow.has_started)
    pid = job.client.pid_of("child-0")
    os.kill(job.client.pid, signal.SIGKILL)
    async with asyncio.timeout(2):
        with pytest.raises(ActorDied):
            await call
        death = await job.deaths.get()
    assert (death.name, death.exit) == ("supervisor", "signal 9 (SIGKILL)")
    await gone([pid], 2)


CLIENT = """
import asyncio, sys
from asyncrl.runtime import ActorSystem, RealHost, SupervisorClient
from tests.unit.runtime.runtime_actors import Counter
async def main():
    folder = sys.argv[1]
    client = SupervisorClient.start(host=RealHost(), folder=folder, log_folder=folder + "-logs", attempt="", env_allow=["PYTHONPATH"])
    client.attach_loop(print)
    system = ActorSystem.bind("rank0", f"ipc://{folder}/rank0.sock", host=RealHost(), token=client.token)
    system.attach(client)
    await system.spawn(Counter, name="c", process="child-0")
    print(client.pid, client.pid_of("child-0"), flush=True)
    await asyncio.Event().wait()
asyncio.run(main())
"""


async def test_killing_the_client_takes_everything_with_it(folder: str, tmp_path: Path) -> None:
    inner = str(tmp_path / "s")
    os.mkdir(inner, 0o700)
    process = subprocess.Popen(  # noqa: ASYNC220
        [sys.executable, "-c", CLIENT, inner], stdout=subprocess.PIPE, text=True, env=os.environ | {"PYTHONPATH": ROOT}, cwd=ROOT
    )
    assert process.stdout is not None
    pids = [int(word) for word in process.stdout.readline().split()]
    assert len(pids) == 2
    process.kill()
    process.wait()
    process.stdout.close()
    await gone(pids, 2)
    assert not exists(inner)


async def test_a_supervisor_starts_before_there_is_a_loop_and_stops_without_one(folder: str, tmp_path: Path) -> None:
    client = SupervisorClient.start(host=RealHost(), folder=folder, log_folder=str(tmp_path), attempt="", env_allow=[])
    await client.stop()
    assert not psutil.pid_exists(client.pid)


async def test_a_bound_system_without_a_supervisor_refuses_children(folder: str) -> None:
    async with ActorSystem.bind("p", f"ipc://{folder}/p.sock", host=RealHost()) as system:
        with pytest.raises(ValueError, match="no supervisor"):
            await system.spawn(Counter, name="c", process="x")
        with pytest.raises(ValueError, match="takes a process of its own"):
            await system.spawn(Counter, name="c", restarts=1)
        assert system.directory is None


async def test_a_frozen_process_that_wakes_after_its_time_can_write_nothing(job: Job, folder: str, tmp_path: Path) -> None:
    own = await job.system.spawn(Counter, name="own")
    pusher = await job.system.spawn(Pusher, name="pusher", process="pusher")
    fifo = str(tmp_path / "refusal")
    os.mkfifo(fifo)
    counting = pusher.stream(Pusher.push, own.address, fifo)
    assert await anext(counting) == "counting"
    os.kill(job.client.pid_of("pusher"), signal.SIGSTOP)
    # Another directory knows of a later life, as that of another node would.
    known = KnownProcesses()
    known.learn(up(msgspec.structs.replace(pusher.address, generation=1)))
    async with ActorSystem.bind("node-1", f"ipc://{folder}/n.sock", host=RealHost(), attempt="a1", token=job.client.token) as other:
        await job.system.join((await other.spawn(Directory, known, lambda actor: [], name="directory")).address)
        counted = await own.call(Counter.add, 0)
        os.kill(job.client.pid_of("pusher"), signal.SIGCONT)
        refusal = await RealHost().run_blocking(Path(fifo).read_text)
        with pytest.raises(ActorDied, match="generation 1 has taken its place"):
            await anext(counting)
    # Whether it was cut off, or came again: by name.
    assert "the connection was refused: generation 0 of pusher" in refusal
    assert await own.call(Counter.add, 0) == counted


async def test_a_restart_on_tcp_may_take_another_port_and_references_follow(folder: str, tmp_path: Path) -> None:
    client = SupervisorClient.start(
        host=RealHost(),
        folder=folder,
        log_folder=str(tmp_path),
        attempt="a1",
        env_allow=[],
        interface="127.0.0.1",
        environment={"PYTHONPATH": ROOT},
    )
    restarts: asyncio.Queue[Restarted] = asyncio.Queue()
    client.attach_loop(lambda death: None, restarts.put_nowait)
    async with ActorSystem.bind("rank0", "tcp://127.0.0.1:*", host=RealHost(), attempt="a1", token=client.token) as system:
        system.attach(client)
        # One that attaches later is told what there is, and hears the rest.
        ref = await system.spawn(Counter, 5, name="counter", process="child-0", restarts=3)
        assert await ref.call(Counter.add, 2) == 7
        async with ActorSystem.bind("rank1", "tcp://127.0.0.1:*", host=RealHost(), attempt="a1", token=client.token) as late:
            late.attach(client)
            os.kill(client.pid_of("child-0"), signal.SIGKILL)
            new = await restarts.get()
            assert new.address.endpoint != ref.address.endpoint
            for each in (ref, late.ref(ref.address, Counter), await late.lookup("counter", Counter)):
                assert await each.call(Counter.add, 0) == 5
    await client.stop(grace=2.0)
