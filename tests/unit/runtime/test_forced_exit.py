"""A shutdown that does not come to its end."""

import asyncio
import contextlib
import re
import threading
from collections.abc import Callable
from typing import NoReturn

import pytest

from asyncrl.runtime import ForcedExit, RealHost, WaitRegistry
from asyncrl.runtime.host import Thread


class Ended(BaseException):
    """Stands for the end of the process."""


class Exits(RealHost):
    """A process that cannot really be ended here."""

    def __init__(self) -> None:
        self.code: int | None = None
        self.ended = threading.Event()

    def end_process(self, code: int) -> NoReturn:
        self.code = code
        self.ended.set()
        raise Ended

    def start_thread(self, function: Callable[[], None], name: str) -> Thread:
        def run() -> None:
            with contextlib.suppress(Ended):
                function()

        self.started = super().start_thread(run, name)
        return self.started


async def never() -> None:
    await asyncio.Event().wait()


async def test_it_names_waits_tasks_and_threads_and_leaves(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    last: list[str] = []
    monkeypatch.setattr("asyncrl.runtime.forced_exit.flush_output", lambda: last.append("output"))
    host = Exits()
    waits = WaitRegistry(host)
    waits.enter("shard-0", "kv_batch_put")
    task = asyncio.get_running_loop().create_task(never(), name="feeder")
    exit = ForcedExit(host, "server", 0.05, waits=waits, code=3, before=lambda: last.append("flushed"))
    exit.start()
    exit.start()
    assert await asyncio.to_thread(host.ended.wait, 30)
    assert (host.code, last) == (3, ["output", "flushed"])
    first, *stacks = capfd.readouterr().err.splitlines()
    assert first.startswith("forced exit after 0.05 s: still waiting for 0 s for shard-0: kv_batch_put; ")
    assert "; task feeder; " in first
    assert re.search(r"; thread MainThread in .*selectors.py:\d+ select", first)
    assert stacks[0] == "stacks of server:"
    task.cancel()
    await asyncio.wait([task])
    waits.close()


async def test_a_shutdown_that_ends_in_time_is_left_alone() -> None:
    host = Exits()
    exit = ForcedExit(host, "server", 30.0)
    exit.start()
    exit.cancel()
    host.started.join(10)
    assert not host.started.is_alive()
    assert host.code is None


async def test_an_output_that_hangs_does_not_keep_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    stuck = threading.Event()
    monkeypatch.setattr("asyncrl.runtime.forced_exit.say_last", lambda text: stuck.wait(30))
    monkeypatch.setattr("asyncrl.runtime.forced_exit.flush_output", lambda: None)
    monkeypatch.setattr("asyncrl.runtime.forced_exit.FLUSH_SECONDS", 0.05)
    host = Exits()
    ForcedExit(host, "server", 0.01).start()
    assert await asyncio.to_thread(host.ended.wait, 10)
    stuck.set()
    assert host.code == 1
