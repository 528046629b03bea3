"""What a process says of where it is, to itself, by message and by signal."""

import asyncio
import functools
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import AsyncIterator

import pytest

from asyncrl.errors import ActorDied, Undeliverable
from asyncrl.runtime import Actor, ActorSystem, RealHost, endpoint
from asyncrl.runtime.stacks import END_OF_STACKS, ask_by_signal, describe_stacks
from tests.unit.runtime.conftest import ROOT, Job
from tests.unit.runtime.runtime_actors import Slow


async def innermost() -> None:
    await asyncio.Event().wait()


async def outermost() -> None:
    await innermost()


async def numbers() -> AsyncIterator[int]:
    await innermost()
    yield 1


async def test_threads_and_tasks_are_named_with_where_they_are() -> None:
    go = threading.Event()
    thread = threading.Thread(target=functools.partial(go.wait, 30), name="device")
    thread.start()
    task = asyncio.get_running_loop().create_task(outermost(), name="session u1")
    await asyncio.sleep(0)
    text = describe_stacks(RealHost(), "agent-0", asyncio.get_running_loop())
    go.set()
    thread.join()
    task.cancel()
    await asyncio.wait([task])
    assert text.startswith("stacks of agent-0:\n")
    assert "thread device:\n" in text
    assert re.search(
        r"^task session u1: unit/runtime/test_stacks.py:\d+ outermost > unit/runtime/test_stacks.py:\d+ innermost > .*locks.py:\d+ wait$",
        text,
        re.MULTILINE,
    )


HUNG = """
import re, sys
from asyncrl.runtime.stacks import answer_signal
answer_signal(sys.stderr)
print("ready", flush=True)
def grades_forever():
    re.match(r"(a+)+$", "a" * 64 + "b")
grades_forever()
"""


async def test_a_process_whose_interpreter_is_held_by_c_code_answers_the_signal(tmp_path: str) -> None:
    log = f"{tmp_path}/hung.log"
    with RealHost().open_append(log) as file:
        process = subprocess.Popen(  # noqa: ASYNC220
            [sys.executable, "-c", HUNG, "asyncrl:hung"], cwd=ROOT, stdout=subprocess.PIPE, stderr=file
        )
    assert process.stdout is not None
    assert process.stdout.readline() == b"ready\n"
    host = RealHost()
    text = ""
    while "in match" not in text:
        text = await host.run_blocking(ask_by_signal, host, process.pid, log, "asyncrl:hung")
    # A number that now belongs to somebody else is left alone.
    assert ask_by_signal(host, process.pid, log, "asyncrl:other") == ""
    process.kill()
    process.wait()
    process.stdout.close()
    assert "in grades_forever\n" in text
    assert END_OF_STACKS not in text
    assert ask_by_signal(host, process.pid, log, "asyncrl:hung") == ""


async def test_another_process_tells_its_stacks_by_message_and_a_frozen_loop_by_signal(job: Job) -> None:
    ref = await job.system.spawn(Slow, name="slow", process="child-0")
    call = asyncio.ensure_future(ref.call(Slow.hang))
    await ref.call(Slow.has_started)
    text = await job.system.stacks_of("child-0")
    assert text.startswith("stacks of child-0:\nthread MainThread:")
    assert re.search(r"^task slow.hang: .*runtime_actors.py:\d+ hang > ", text, re.MULTILINE)
    by_signal = await RealHost().run_blocking(job.client.stacks, "child-0")
    assert by_signal.startswith("Current thread") or "Thread 0x" in by_signal
    assert re.search(r"^task slow.hang: .*runtime_actors.py:\d+ hang > ", by_signal, re.MULTILINE)
    assert by_signal.endswith(END_OF_STACKS)
    # The supervisor has no loop and no tasks; it answers, and lives.
    assert "in run\n" in await RealHost().run_blocking(job.client.stacks, "supervisor")
    assert await ref.call(Slow.made) == 0
    call.cancel()
    await asyncio.wait([call])


class Sleeper(Actor):
    """Its loop can be made to stand still."""

    @endpoint
    async def hang(self) -> None:
        threading.Event().wait()


async def test_a_child_whose_loop_stands_still_is_asked_by_signal(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("asyncrl.runtime.observation.ANSWER_SECONDS", 0.3)
    ref = await job.system.spawn(Sleeper, name="sleeper", process="child-0")
    call = asyncio.ensure_future(ref.watched(60).call(Sleeper.hang))
    text = await job.system.stacks_of("child-0")
    while "in hang" not in text:
        text = await job.system.stacks_of("child-0")
    assert re.search(r'test_stacks.py", line \d+ in hang\n', text)
    os.kill(job.client.pid_of("child-0"), signal.SIGKILL)
    with pytest.raises(ActorDied):
        await call


async def test_the_stacks_of_a_stranger_cannot_be_asked_for() -> None:
    async with ActorSystem.local() as system:
        assert "test_the_stacks_of_a_stranger" in await system.stacks_of("main")
        with pytest.raises(Undeliverable, match="main has no connection to it"):
            await system.stacks_of("rank7")
