"""Whichever layer is killed, nothing of what it stood over lives on."""

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import psutil
import pytest

from asyncrl.runtime import RealHost, SupervisorClient
from asyncrl.runtime.host import run_main
from tests.faults.conftest import ROOT, exists
from tests.faults.fault_actors import Worker
from tests.faults.promises import promised
from tests.faults.systems import bind

GONE = 5.0
"""Seconds after which no process may be left."""


class Family:
    """A client process, its supervisor, two children, and a process of each child's own."""

    def __init__(self, client: "subprocess.Popen[str]", pids: dict[str, int], folder: str) -> None:
        self.client, self.pids, self.folder = client, pids, folder

    async def are_gone(self, *names: str) -> None:
        """Returns once these have ended; whoever collects orphans here may not have collected them."""
        for name in names:
            await ended(self.pids[name])


def settle(future: "asyncio.Future[None]") -> None:
    if not future.done():
        future.set_result(None)


async def ended(pid: int) -> None:
    """Returns once a process that is not ours has ended."""
    loop = asyncio.get_running_loop()
    with contextlib.suppress(ProcessLookupError):
        pidfd = os.pidfd_open(pid)
        future: asyncio.Future[None] = loop.create_future()
        loop.add_reader(pidfd, settle, future)
        try:
            await future
        finally:
            loop.remove_reader(pidfd)
            os.close(pidfd)


async def client(folder: str) -> None:
    """What the client process does: build the family, tell its numbers, wait."""
    supervisor = SupervisorClient.start(
        host=RealHost(), folder=folder, log_folder=f"{folder}-logs", attempt="a1", env_allow=["PYTHONPATH", "OMP_NUM_THREADS"]
    )
    supervisor.attach_loop(lambda death: print(json.dumps({"died": death.name}), flush=True))
    async with bind("rank0", f"ipc://{folder}/rank0.sock", RealHost(), token=supervisor.token) as system:
        system.attach(supervisor)
        pids = {"client": os.getpid(), "supervisor": supervisor.pid}
        for name in ("one", "two"):
            worker = await system.spawn(Worker, name=name, process=name)
            pids |= {name: supervisor.pid_of(name), f"of {name}": await worker.call(Worker.grandchild)}
        print(json.dumps(pids), flush=True)
        await asyncio.Event().wait()


@pytest.fixture
async def family(tmp_path: Path) -> AsyncIterator[Family]:
    folder = str(tmp_path / "s")
    os.mkdir(folder, 0o700)
    code = "import sys; from tests.faults import test_orphans; test_orphans.main(sys.argv[1])"
    process = subprocess.Popen(  # noqa: ASYNC220
        [sys.executable, "-c", code, folder], stdout=subprocess.PIPE, text=True, env=os.environ | {"PYTHONPATH": ROOT}, cwd=ROOT
    )
    assert process.stdout is not None
    pids: dict[str, int] = json.loads(await asyncio.to_thread(process.stdout.readline))
    yield Family(process, pids, folder)
    process.kill()
    process.communicate()
    for pid in pids.values():
        with contextlib.suppress(psutil.NoSuchProcess):
            psutil.Process(pid).kill()


def main(folder: str) -> None:
    """Entry of the client process."""
    run_main(lambda: client(folder))


async def test_killing_the_client_leaves_nothing(family: Family) -> None:
    async with promised(GONE, "kill -9 of the client: supervisor, children and their processes are gone"):
        family.client.kill()
        await family.are_gone("supervisor", "one", "of one", "two", "of two")
    assert not exists(family.folder)
    # Logs that were named are kept.
    assert exists(f"{family.folder}-logs/supervisor.log")


async def test_killing_a_child_and_then_its_supervisor_leaves_nothing_of_theirs(family: Family) -> None:
    async with promised(GONE, "kill -9 of a child: the processes it started are gone"):
        os.kill(family.pids["one"], signal.SIGKILL)
        await family.are_gone("of one")
    assert psutil.pid_exists(family.pids["of two"])
    async with promised(GONE, "kill -9 of the supervisor: children and their processes are gone"):
        os.kill(family.pids["supervisor"], signal.SIGKILL)
        await family.are_gone("two", "of two")
    assert family.client.poll() is None


@pytest.mark.faults
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=["SIGTERM", "SIGINT"])
async def test_a_signal_to_the_client_leaves_nothing(family: Family, number: int) -> None:
    async with promised(GONE, f"{signal.Signals(number).name} to the client: everything is gone"):
        family.client.send_signal(number)
        await family.are_gone("supervisor", "one", "of one", "two", "of two")


@pytest.mark.faults
async def test_killing_a_frozen_child_leaves_nothing_of_its_own(family: Family) -> None:
    os.kill(family.pids["one"], signal.SIGSTOP)
    async with promised(GONE, "kill -9 of the client while a child is frozen: everything is gone"):
        family.client.kill()
        await family.are_gone("supervisor", "one", "of one", "two", "of two")
