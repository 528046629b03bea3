"""What supervisors leave behind: no process of a child that was only starting, no temporary folder, and logs for nobody else."""

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from asyncrl.errors import ActorDied, WireError
from asyncrl.runtime import ActorSystem, ProcessSpec, RealHost, encode
from asyncrl.runtime.own_supervisor import OwnSupervisor
from asyncrl.runtime.supervisor_messages import LONGEST_ORDER
from tests.unit.runtime.conftest import ROOT, Job
from tests.unit.runtime.restart_actors import Founder
from tests.unit.runtime.runtime_actors import Counter
from tests.unit.runtime.test_supervised_processes import gone


async def founded(fifo: str) -> list[int]:
    """The pids of a founder and of the process that it started."""
    return [int(word) for word in (await asyncio.to_thread(Path(fifo).read_text)).split()]


async def test_the_processes_of_children_that_start_or_restart_end_with_their_supervisor(job: Job, tmp_path: Path) -> None:
    new, old = str(tmp_path / "new"), str(tmp_path / "old")
    os.mkfifo(new)
    os.mkfifo(old)
    await job.system.spawn(Founder, old, 1, name="old", process="old", restarts=1)
    os.kill(job.client.pid_of("old"), signal.SIGKILL)
    start = asyncio.create_task(job.system.spawn(Founder, new, 0, name="new", process="new-0"))
    pids = [*(await founded(new)), *(await founded(old))]
    assert [job.client.pid_of("new-0"), job.client.pid_of("old")] == pids[::2]
    # One that does not come up can be asked why.
    assert "on_start" in await job.system.stacks_of("new-0")
    os.kill(job.client.pid, signal.SIGKILL)
    with pytest.raises(ActorDied, match="its supervisor ended"):
        await start
    await gone(pids, 6)


async def test_orders_too_large_or_with_huge_names_harm_nobody(job: Job, tmp_path: Path) -> None:
    counter = await job.system.spawn(Counter, name="counter", process="bystander")
    actor = f"{Counter.__module__}:Counter"
    with pytest.raises(WireError, match=f"big: .* at most {LONGEST_ORDER} travel; pass large arguments in a call"):
        await job.client.spawn(ProcessSpec("big", actor, encode(["x" * LONGEST_ORDER])[0], {}))
    # What repeats an order may be longer than the order was.
    with pytest.raises(ActorDied, match="a process name has"):
        await job.client.spawn(ProcessSpec("x" * (LONGEST_ORDER - 1024), actor, encode([])[0], {}))
    # The largest that fits arrives: the child's word is about its type, not about its size.
    with pytest.raises(ActorDied, match="Expected `int`, got `str`"):
        await job.client.spawn(ProcessSpec("big", actor, encode(["x" * (LONGEST_ORDER - 1024)])[0], {}))
    with pytest.raises(KeyError):
        job.client.pid_of("big")
    assert job.client.pid_of("bystander") == await counter.call(Counter.pid)
    # What they printed is their owner's.
    assert {log.name: log.stat().st_mode & 0o777 for log in (tmp_path / "logs").glob("*.log")} == dict.fromkeys(
        ["supervisor.log", "bystander.log", "big.log"], 0o600
    )


PROGRAM = """
import asyncio
from asyncrl.runtime import ActorSystem
from tests.unit.runtime.runtime_actors import Counter
async def main():
    async with ActorSystem.start() as system:
        counter = await system.spawn(Counter, name="counter", process="child")
        print(await counter.call(Counter.pid), flush=True)
        await asyncio.Event().wait()
asyncio.run(main())
"""


async def test_a_program_that_is_killed_leaves_no_temporary_folder(tmp_path: Path) -> None:
    process = subprocess.Popen(  # noqa: ASYNC220
        [sys.executable, "-c", PROGRAM],
        stdout=subprocess.PIPE,
        env=os.environ | {"PYTHONPATH": ROOT, "TMPDIR": str(tmp_path)},
        cwd=ROOT,
    )
    assert process.stdout is not None
    child = int(await asyncio.to_thread(process.stdout.readline))
    supervisor = psutil.Process(child).ppid()
    assert any(name.startswith("asyncrl-logs-") for name in os.listdir(tmp_path))
    process.kill()
    process.communicate()
    await gone([supervisor, child], 6)
    assert os.listdir(tmp_path) == []


async def test_a_supervisor_that_dies_alone_is_reported_with_its_last_words_from_a_temporary_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    async with ActorSystem.start("main") as system:
        deaths: asyncio.Queue[list[str]] = asyncio.Queue()
        system.children.on_death = lambda death: deaths.put_nowait(death.last_lines) if death.name == "supervisor" else None
        counter = await system.spawn(Counter, name="counter", process="child")
        supervisor = psutil.Process(await counter.call(Counter.pid)).ppid()
        os.kill(supervisor, signal.SIGTERM)
        async with asyncio.timeout(6):
            lines = await deaths.get()
        assert "child" in lines[-1]
        assert "ended: signal 9 (SIGKILL)" in lines[-1]
    assert os.listdir(tmp_path) == []


def test_a_fork_that_leaves_takes_nothing_of_its_parents_supervisor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    own = OwnSupervisor(RealHost())
    copy = os.fork()
    if not copy:
        try:
            own.abandon()
            asyncio.run(own.stop())
        finally:
            os._exit(0)
    os.waitpid(copy, 0)
    assert psutil.Process(own.client.pid).status() != psutil.STATUS_ZOMBIE
    assert len(os.listdir(tmp_path)) == 2
    own.abandon()
    assert os.listdir(tmp_path) == []
