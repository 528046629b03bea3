"""Fixtures of the fault tests: processes to hurt, and proof that nothing of them is left."""

import asyncio
import contextlib
import gc
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import psutil
import pytest

from asyncrl.runtime import ActorAddress, ActorRef, ActorSystem, ProcessDeath, RealHost, SupervisorClient, private_folder
from asyncrl.runtime.host import remove_folder
from tests.faults.fault_actors import Worker
from tests.faults.peer import Papers
from tests.faults.promises import lines
from tests.faults.systems import bind
from tests.unit.runtime.runtime_actors import open_descriptors

ROOT = str(Path(__file__).parents[2])


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Shows how long every fault took to be seen, when asked to be verbose."""
    if terminalreporter.verbosity > 0:
        for line in lines():
            terminalreporter.write_line(line)


def exists(path: str) -> bool:
    """Whether there is something at a path."""
    return Path(path).exists()


def native_threads() -> int:
    """Threads of this process, libzmq's included, without those of the loop's executor."""
    return len(os.listdir("/proc/self/task")) - sum(thread.name.startswith("asyncio_") for thread in threading.enumerate())


def _threads_fall_to(count: int) -> bool:
    """Whether no more than these remain; the kernel lists a thread for a moment after it was joined."""
    deadline = time.monotonic() + 5.0
    while native_threads() > count and time.monotonic() < deadline:
        time.sleep(0.01)
    return native_threads() <= count


@pytest.fixture(autouse=True)
async def nothing_is_left() -> AsyncIterator[None]:
    """Fails a test that leaves a task, a descriptor, a thread or a process behind, or an error that nobody caught."""
    unhandled: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: unhandled.append(context))
    gc.collect()
    before, threads = open_descriptors(), native_threads()
    yield
    gc.collect()
    # One more turn: an error in a callback or a dropped task is told by then.
    await asyncio.sleep(0)
    left = [task.get_name() for task in asyncio.all_tasks() if task is not asyncio.current_task()]
    assert not unhandled
    assert not left
    assert open_descriptors() == before
    assert await asyncio.to_thread(_threads_fall_to, threads)
    assert not psutil.Process().children(recursive=True)


@pytest.fixture
def folder() -> Iterator[str]:
    """A private folder for sockets."""
    path = private_folder()
    yield path
    remove_folder(path)


class Peer:
    """A system with a worker, and references to it."""

    def __init__(self, address: ActorAddress) -> None:
        self.address = address

    def worker(self, caller: ActorSystem, endpoint: str = "") -> ActorRef[Worker]:
        """The worker as seen by ``caller``, by way of another ``endpoint`` where one is given."""
        address = msgspec.structs.replace(self.address, endpoint=endpoint or self.address.endpoint)
        return caller.ref(address, Worker)

    def elsewhere(self, actor: str, endpoint: str = "") -> ActorAddress:
        """The address of another actor of the process."""
        return msgspec.structs.replace(self.address, actor=actor, endpoint=endpoint or self.address.endpoint)


class PeerProcess(Peer):
    """Such a system in a process of its own."""

    def __init__(self, process: "subprocess.Popen[bytes]", address: ActorAddress) -> None:
        super().__init__(address)
        self.process, self.pid = process, process.pid

    def signal(self, number: int) -> None:
        """Signals the process."""
        self.process.send_signal(number)


StartPeer = Callable[..., Awaitable[PeerProcess]]


@pytest.fixture
async def start_peer(folder: str) -> AsyncIterator[StartPeer]:
    """Starts processes: ``await start_peer("there", "tcp", generation=1)``."""
    started: list[subprocess.Popen[bytes]] = []

    async def start(name: str = "there", transport: str = "tcp", **papers: Any) -> PeerProcess:
        endpoint = "tcp://127.0.0.1:*" if transport == "tcp" else f"ipc://{folder}/{name}-{len(started)}.sock"
        argument = msgspec.json.encode(Papers(name, endpoint, **papers)).decode()
        process = subprocess.Popen(  # noqa: ASYNC220
            [sys.executable, "-m", "tests.faults.peer", argument], cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        started.append(process)
        assert process.stdout is not None
        line = await asyncio.to_thread(process.stdout.readline)
        return PeerProcess(process, msgspec.json.decode(line, type=ActorAddress))

    yield start
    for process in started:
        # What a test froze must hear that it is over; what it killed cannot.
        with contextlib.suppress(ProcessLookupError):
            os.kill(process.pid, signal.SIGCONT)
        process.communicate(timeout=10)


@pytest.fixture
async def caller(folder: str) -> AsyncIterator[ActorSystem]:
    """A system that calls."""
    async with bind("caller", f"ipc://{folder}/caller.sock", RealHost()) as system:
        yield system
        assert not system.waits.snapshot()


@pytest.fixture
async def inside() -> AsyncIterator[Peer]:
    """A callee of this very process; what is between it and its caller is what a test hurts."""
    async with bind("there", "tcp://127.0.0.1:*", RealHost()) as system:
        await system.spawn(Worker, name="worker")
        yield Peer(system.address("worker"))


class Job:
    """A supervisor with its system and the deaths that were reported."""

    def __init__(self, client: SupervisorClient, system: ActorSystem, deaths: "asyncio.Queue[ProcessDeath]", logs: Path) -> None:
        self.client, self.system, self.deaths, self.logs = client, system, deaths, logs


@pytest.fixture
async def job(folder: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Job]:
    """A running supervisor, attached."""
    monkeypatch.setenv("PYTHONPATH", ROOT)
    logs = tmp_path / "logs"
    client = SupervisorClient.start(
        host=RealHost(), folder=folder, log_folder=str(logs), attempt="a1", env_allow=["PYTHONPATH", "OMP_NUM_THREADS"]
    )
    deaths: asyncio.Queue[ProcessDeath] = asyncio.Queue()
    client.attach_loop(deaths.put_nowait)
    async with bind("rank0", f"ipc://{folder}/rank0.sock", RealHost(), token=client.token) as system:
        system.attach(client)
        yield Job(client, system, deaths, logs)
    await client.stop(grace=2.0)
