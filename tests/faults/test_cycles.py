"""Start and stop, again and again: each time everything comes up, serves and leaves without a trace."""

import asyncio
import gc
import json
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import msgspec
import psutil
import pytest

from asyncrl.runtime import RealHost, SupervisorClient, all_of, private_folder
from asyncrl.runtime.host import run_main
from tests.faults.conftest import ROOT, exists
from tests.faults.fault_actors import Worker
from tests.faults.promises import LENIENCE, TABLE
from tests.faults.systems import bind

LONGEST = 5.0
"""Seconds that one start and stop may take."""


class Trace(msgspec.Struct):
    """What a process holds at one moment, and how long the cycle before it took."""

    seconds: float
    descriptors: int
    threads: int
    native_threads: int
    tasks: int
    children: int
    resident: int


async def cycle(logs: str) -> None:
    """A system, a supervisor and two children that call and are called."""
    folder = private_folder()
    supervisor = SupervisorClient.start(
        host=RealHost(), folder=folder, log_folder=logs, attempt="a1", env_allow=["PYTHONPATH", "OMP_NUM_THREADS"]
    )
    supervisor.attach_loop(lambda death: print(f"died: {death}", file=sys.stderr))
    async with bind("rank0", f"ipc://{folder}/rank0.sock", RealHost(), token=supervisor.token) as system:
        system.attach(supervisor)
        one, two = await all_of([lambda n=n: system.spawn(Worker, name=n, process=n) for n in ("one", "two")])  # type: ignore[misc]
        assert await one.call(Worker.echo, 1) == 1
        assert len(await two.call(Worker.bytes_of, 1 << 20)) == 1 << 20
        await one.tell(Worker.effect, "told")
        open_call = asyncio.ensure_future(two.call(Worker.hang))
        async for number in one.stream(Worker.numbers, 40):
            if number == 20:
                break
    await asyncio.wait([open_call])
    open_call.exception()
    await supervisor.stop(grace=2.0)
    assert not exists(folder)


def trace(began: float) -> Trace:
    """What this process holds."""
    gc.collect()
    me = psutil.Process()
    counts = len(os.listdir("/proc/self/fd")), threading.active_count(), len(os.listdir("/proc/self/task")), len(asyncio.all_tasks())
    return Trace(time.perf_counter() - began, *counts, len(me.children(recursive=True)), me.memory_info().rss)


async def cycles(count: int, logs: str) -> None:
    """Runs in a process of its own and prints a trace after each cycle."""
    for _ in range(count):
        began = time.perf_counter()
        await cycle(logs)
        print(msgspec.json.encode(trace(began)).decode(), flush=True)


def main(count: str, logs: str) -> None:
    """Entry of that process."""
    run_main(lambda: cycles(int(count), logs))


def run_cycles(count: int, logs: Path) -> list[Trace]:
    code = "import sys; from tests.faults import test_cycles; test_cycles.main(*sys.argv[1:])"
    shown = subprocess.run(
        [sys.executable, "-W", "error", "-c", code, str(count), str(logs)],
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | {"PYTHONPATH": ROOT},
        cwd=ROOT,
        timeout=LENIENCE * LONGEST * count,
    )
    assert (shown.stderr, shown.returncode) == ("", 0)
    return [msgspec.convert(json.loads(line), Trace) for line in shown.stdout.splitlines()]


def check(traces: list[Trace], logs: Path) -> None:
    # The first cycles warm up: pyzmq's own thread for buffers, caches of imports.
    settled = traces[1]
    for seen in traces[1:]:
        assert (seen.descriptors, seen.threads, seen.native_threads) == (settled.descriptors, settled.threads, settled.native_threads)
        assert (seen.tasks, seen.children) == (1, 0)
        assert seen.seconds < LENIENCE * LONGEST
    for log in logs.iterdir():
        text = log.read_text()
        assert "Traceback" not in text, text
        assert "rror" not in text, text
    TABLE.append(
        (f"start and stop of system, supervisor and 2 children, slowest of {len(traces)}", LONGEST, max(t.seconds for t in traces))
    )


def test_starting_and_stopping_leaves_nothing(tmp_path: Path) -> None:
    traces = run_cycles(3, tmp_path / "logs")
    check(traces, tmp_path / "logs")


@pytest.mark.faults
@pytest.mark.timeout(500)
def test_thirty_starts_and_stops_leave_nothing_and_need_no_more_memory(tmp_path: Path) -> None:
    traces = run_cycles(30, tmp_path / "logs")
    check(traces, tmp_path / "logs")
    assert len(traces) == 30
    # The allocator takes its memory from the kernel by the megabyte.
    assert traces[-1].resident - traces[4].resident < 4 << 20
