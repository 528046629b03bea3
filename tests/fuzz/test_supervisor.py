"""Garbage on the control socket of a supervisor, in its papers, in those of its children, and on the pipe of a child."""

import asyncio
import os
import random
import re
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import psutil
import pytest

from asyncrl.errors import ActorDied, WireError
from asyncrl.runtime import ActorAddress, ProcessDeath, ProcessSpec, RealHost, SupervisorClient, encode
from asyncrl.runtime.host import ControlSocket, Launched, launch_session, python_module, sealed_bytes, socket_pair
from asyncrl.runtime.supervisor_messages import (
    Died,
    FrameReader,
    Membership,
    NotReady,
    Ready,
    Replace,
    Settings,
    Spawn,
    Stop,
    StopChild,
    framed,
)
from tests.faults.conftest import ROOT, Job, exists
from tests.faults.fault_actors import Worker
from tests.faults.promises import promised
from tests.fuzz.babbler import Babbler
from tests.fuzz.mutation import Mutator, plain_map

SPEC = ProcessSpec("child", "tests.faults.fault_actors:Worker", encode([])[0], {"PYTHONPATH": ROOT})
ORDERS = [Spawn(SPEC, Membership("a1", b"t" * 32)), StopChild("child", 1.0), Replace("child", 0, "frozen"), Stop(0.5)]
ADDRESS = ActorAddress("child", "ipc:///nowhere", "w", "a1", 0)
REPORTS = [Ready("child", 1, ADDRESS), NotReady("child", "cause", ["line"]), Died(ProcessDeath("child", 1, "exit code 1", []))]


def garbage(seed: int, samples: list[Any]) -> bytes:
    """A stream of control messages of which most are broken."""
    mutator = Mutator(seed, [], lambda rng: rng.choice(samples))
    rng = mutator.random
    stream = b""
    for _ in range(rng.randint(1, 5)):
        frame = msgspec.msgpack.encode(broken(rng, plain_map(rng.choice(samples))))
        length = len(frame) + rng.choice((0, 0, 0, 0, 1, -1, 2**28, 2**31))
        stream += (max(0, length) & 0xFFFFFFFF).to_bytes(4, "little") + frame
    return rng.choice((stream, stream, stream[: rng.randint(0, len(stream))], rng.randbytes(rng.randint(0, 300))))


def broken(rng: random.Random, message: dict[str, Any]) -> dict[str, Any]:
    """A message with a wrong, missing or additional field."""
    key = rng.choice(list(message))
    way = rng.randrange(4)
    if way == 0:
        del message[key]
    elif way == 1:
        message["another"] = 1
    elif way == 2:
        message[key] = rng.choice((None, -1, 2**63, "x" * 300, b"\xff", [[]], {"a": 1}))
    return message


class Bare:
    """A supervisor process whose control socket is in the hands of the test."""

    def __init__(self, folder: str, logs: Path) -> None:
        self.folder, self.log = folder, logs / "supervisor.log"
        near, far = socket_pair()
        papers = sealed_bytes(msgspec.msgpack.encode(Settings(os.getpid(), folder, str(logs), ["PATH", "OMP_NUM_THREADS"])))
        self.process = start("asyncrl.runtime.supervisor", self.log, papers, far.fileno(), os.getpid())
        far.close()
        os.close(papers)
        self.control: ControlSocket = near

    def ends(self) -> int:
        """Its exit status; everything that it started is gone by then."""
        children = psutil.Process(self.process.pid).children(recursive=True)
        self.control.close()
        status = self.process.wait(10)
        assert not [child for child in children if child.is_running()]
        assert not exists(self.folder)
        return status


def start(module: str, log: Path, *args: int) -> "subprocess.Popen[bytes]":
    """A process of the runtime with file descriptors of the test's choice."""
    log.parent.mkdir(exist_ok=True)
    with open(log, "ab") as file:
        argv = python_module(module, "asyncrl:fuzzed", *[str(arg) for arg in args])
        return subprocess.Popen(argv, cwd=ROOT, stdout=file, stderr=file, pass_fds=args[:2], env=os.environ | {"PYTHONPATH": ROOT})


def orders_end_it(folder: Path, seeds: range) -> None:
    for seed in seeds:
        inner = folder / f"s{seed}"
        inner.mkdir(mode=0o700)
        supervisor = Bare(str(inner), folder / f"logs{seed}")
        supervisor.control.setblocking(True)
        try:
            supervisor.control.sendall(framed(ORDERS[0]) + garbage(seed, ORDERS))
            supervisor.control.settimeout(10)
            reader, heard = FrameReader(), b"x"
            while heard:
                try:
                    heard = supervisor.control.recv(65536)
                except ConnectionError:
                    break
                except TimeoutError:
                    # Nothing in it was broken, or it waits for the rest of a message.
                    break
                if any(b"ready" in each for each in reader.feed(heard)):
                    break
        finally:
            status = supervisor.ends()
        log = supervisor.log.read_text()
        assert status in (0, 1)
        assert status == 0 or "the control socket cannot be read" in log, log


def test_garbage_on_the_control_socket_ends_a_supervisor_and_its_children(tmp_path: Path) -> None:
    orders_end_it(tmp_path, range(1))


@pytest.mark.faults
@pytest.mark.timeout(600)
def test_garbage_on_the_control_socket_ends_a_supervisor_and_its_children_over_many_seeds(tmp_path: Path) -> None:
    orders_end_it(tmp_path, range(1, 40))


@pytest.mark.parametrize("module", ["asyncrl.runtime.supervisor", "asyncrl.runtime.process"])
def test_papers_that_cannot_be_read_end_a_process_at_once_by_name(tmp_path: Path, module: str) -> None:
    for seed, papers in enumerate((b"\xc1", msgspec.msgpack.encode({"spec": 3}))):
        near, far = socket_pair()
        descriptor = sealed_bytes(papers)
        log = tmp_path / f"log{seed}"
        process = start(module, log, descriptor, far.fileno(), os.getpid())
        os.close(descriptor)
        far.close()
        assert process.wait(10) == 1
        near.close()
        assert "Error" in log.read_text().splitlines()[-1]


async def test_a_child_that_babbles_on_its_pipe_fails_alone(job: Job) -> None:
    worker = await job.system.spawn(Worker, name="worker", process="good")
    for way in ("random", "another", "twice"):
        async with promised(3.0, f"child whose readiness cannot be read ({way})"):
            with pytest.raises(ActorDied, match=r"bad died: .*cannot be believed"):
                await job.system.spawn(Babbler, way, name="b", process="bad")
    assert await worker.call(Worker.echo, 1) == 1
    again = await job.system.spawn(Worker, name="b", process="bad")
    assert await again.call(Worker.echo, 2) == 2


class Fake:
    """A client whose supervisor is a process that only sleeps, and what it is told."""

    def __init__(self, client: SupervisorClient, mouth: ControlSocket, deaths: "asyncio.Queue[ProcessDeath]") -> None:
        self.client, self.mouth, self.deaths = client, mouth, deaths


@pytest.fixture
async def fake(folder: str, tmp_path: Path) -> AsyncIterator[Fake]:
    near, far = socket_pair()
    with RealHost().open_append(str(tmp_path / "log")) as log:
        process: Launched = launch_session([sys.executable, "-c", "import time; time.sleep(60)"], {}, (), log)
    near.setblocking(False)
    client = SupervisorClient(process, near, folder, str(tmp_path / "log"), "a1", b"t" * 32)
    deaths: asyncio.Queue[ProcessDeath] = asyncio.Queue()
    client.attach_loop(deaths.put_nowait)
    yield Fake(client, far, deaths)
    far.close()
    await client.stop(grace=0.1)


@pytest.mark.parametrize("seed", range(4))
async def test_a_supervisor_that_babbles_is_ended_and_reported(fake: Fake, seed: int) -> None:
    start = asyncio.ensure_future(fake.client.spawn(SPEC))
    await asyncio.sleep(0)
    async with promised(1.0, "supervisor whose reports cannot be read"):
        fake.mouth.sendall(garbage(seed, REPORTS) + b"\xff" * 64)
        with pytest.raises(ActorDied, match="child died"):
            await start
        if not fake.client.gone:
            assert re.fullmatch(r"it said what cannot be read \(.*\): signal 9 \(SIGKILL\)", (await fake.deaths.get()).exit)


def test_an_impossible_length_is_refused_before_anything_is_kept() -> None:
    reader = FrameReader()
    with pytest.raises(WireError, match="control message of"):
        reader.feed(b"\xff" * 4)
