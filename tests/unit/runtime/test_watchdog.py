"""The watcher thread: what it says of a loop and of waits, and how it ends a process."""

import asyncio
import logging
import os
import re
import threading
from pathlib import Path

import pytest

from asyncrl.runtime import RealHost, WaitRegistry
from asyncrl.runtime.waits import FOREVER
from asyncrl.runtime.watchdog import Watchdog
from asyncrl.runtime.watching import REPORTING, Watching
from tests.unit.runtime.hand_host import HandHost

TICK = r"[\w./]*threading.py:\d+ wait \(from unit/runtime/hand_host.py:\d+ tick\)"


class Watched:
    """A watcher on a host that is moved by hand."""

    def __init__(self, watching: Watching = REPORTING) -> None:
        self.host = HandHost()
        self.waits = WaitRegistry(self.host)
        self.dog = Watchdog("agent-0", self.host, self.waits, watching)
        self.dog.start()

    async def turns(self, seconds: int) -> None:
        """Time passes, and the loop turns all the while."""
        for _ in range(seconds):
            self.host.tick(1.0)
            await asyncio.sleep(0)

    def pings(self) -> None:
        """The next ping leaves; the loop does not come to it until it turns."""
        self.host.tick(1.0)

    def stands(self, seconds: int) -> None:
        """Time passes, and this thread does not let its loop turn."""
        for _ in range(seconds):
            self.host.tick(1.0)

    def close(self) -> None:
        self.dog.close()
        self.waits.close()


async def test_a_loop_that_turns_is_asked_once_a_second_and_not_spoken_of(caplog: pytest.LogCaptureFixture) -> None:
    watched = Watched()
    await watched.turns(6)
    # The first look sends the first ping.
    assert (watched.dog.lags.count, watched.dog.stalls, caplog.messages) == (6, 0, [])
    watched.close()


async def test_a_blocked_loop_is_reported_at_one_second_with_its_place_then_with_its_stack_then_with_its_length(
    caplog: pytest.LogCaptureFixture,
) -> None:
    stalls: list[tuple[float, str]] = []
    watched = Watched()
    watched.dog.on_stall = lambda seconds, place: stalls.append((seconds, place))
    await watched.turns(2)
    watched.pings()
    watched.stands(1)
    (first,) = caplog.messages
    assert re.fullmatch(rf"event loop of agent-0 blocked 1.0 s in {TICK}", first)
    watched.stands(1)
    assert re.match(rf"event loop of agent-0 blocked 2.0 s in {TICK}; its stack:\n  File", caplog.messages[1])
    assert "in stands" in caplog.messages[1]
    watched.stands(3)
    assert len(caplog.messages) == 2
    await asyncio.sleep(0)
    await watched.turns(1)
    assert re.match(r"event loop of agent-0 was blocked 5.0 s in .*; it runs again", caplog.messages[2])
    assert (watched.dog.stalls, [seconds for seconds, _ in stalls]) == (1, [5.0])
    assert not watched.dog.stalled
    assert watched.host.ended is None
    watched.close()
    assert len(caplog.messages) == 3


async def test_a_process_that_stood_still_as_a_whole_is_told_apart_and_its_loop_gets_its_time_anew(
    caplog: pytest.LogCaptureFixture,
) -> None:
    watched = Watched(Watching(budget=5.0))
    await watched.turns(2)
    watched.host.tick(60.0)
    (said,) = caplog.messages
    why = "as were all other threads: a frozen process, or code that holds the interpreter lock"
    assert re.fullmatch(rf"event loop of agent-0 blocked 59.0 s, {why}; it is now in {TICK}", said)
    await asyncio.sleep(0)
    await watched.turns(3)
    assert watched.host.ended is None
    assert len(caplog.messages) == 1
    watched.close()


async def test_a_loop_that_is_blocked_beyond_its_budget_ends_the_process_with_all_stacks_and_waits(
    caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    reports: list[str] = []
    watched = Watched(Watching(budget=4.0, stacks=str(tmp_path)))
    watched.dog.on_stuck = reports.append
    watched.waits.enter("shard-0", "kv_batch_put", FOREVER)
    watched.host.now += 37.0
    await watched.turns(2)
    watched.pings()
    watched.stands(4)
    assert watched.host.ended == 1
    assert re.fullmatch(r"event loop of agent-0 blocked 4.0 s in .*: its budget of 4 s is spent, the process ends", reports[0])
    words = caplog.messages[-1]
    assert words.startswith(reports[0])
    assert "waiting 44 s for shard-0: kv_batch_put" in words
    assert "thread MainThread:" in words
    assert "test_a_loop_that_is_blocked_beyond_its_budget" in words
    assert os.listdir(tmp_path) == ["stacks-agent-0-1.txt"]
    assert f"stacks of agent-0: {tmp_path}/stacks-agent-0-1.txt" in words
    watched.close()


async def test_a_full_disk_does_not_keep_the_process(tmp_path: Path) -> None:
    watched = Watched(Watching(budget=4.0, stacks=str(tmp_path)))
    watched.host.disk_is_full = True
    watched.pings()
    watched.stands(4)
    assert watched.host.ended == 1
    watched.close()


async def test_a_process_that_is_told_to_end_in_another_way_still_ends_when_that_fails() -> None:
    def fails(report: str) -> None:
        raise ValueError(report)

    watched = Watched(Watching(budget=3.0))
    watched.dog.on_stuck = fails
    watched.pings()
    watched.stands(3)
    assert watched.host.ended == 1
    watched.close()


async def test_a_wait_whose_timer_is_not_served_is_reported_two_seconds_past_its_limit_with_the_stacks_of_both_sides(
    caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    watched = Watched(Watching(budget=None, stacks=str(tmp_path)))
    watched.dog.ask = lambda process: f"the stacks that {process} sent"
    await watched.turns(2)
    watched.pings()
    watched.waits.enter("queue@shard-0", "QueueShard.put", 3.0)
    watched.stands(5)
    assert not [line for line in caplog.messages if "waited" in line]
    watched.stands(3)
    (line,) = [line for line in caplog.messages if "waited" in line]
    assert line.startswith(
        "waited 6.0 s for queue@shard-0: QueueShard.put, 2 s past its limit of 3 s; the event loop is blocked for 6.0 s in"
    )
    assert (tmp_path / "stacks-shard-0-2.txt").read_text() == "the stacks that shard-0 sent\n"
    assert "thread MainThread:" in (tmp_path / "stacks-agent-0-1.txt").read_text()
    assert watched.host.ended is None
    watched.close()


async def test_a_stuck_wait_ends_the_process_when_that_was_asked_for() -> None:
    reports: list[str] = []
    watched = Watched(Watching(budget=None, end_when_stuck=True))
    watched.dog.on_stuck = reports.append
    watched.waits.enter("queue@shard-0", "QueueShard.put", 1.0)
    watched.stands(4)
    assert watched.host.ended == 1
    assert reports[0].startswith("waited 4.0 s for queue@shard-0: QueueShard.put, 2 s past its limit of 1 s")
    watched.close()


async def test_a_loop_that_was_closed_ends_its_watcher() -> None:
    host = HandHost()

    async def leave() -> None:
        Watchdog("agent-0", host, WaitRegistry(host), REPORTING).start()

    await asyncio.to_thread(asyncio.run, leave())
    before = threading.active_count()
    host.tick(1.0)
    assert threading.active_count() < before


async def test_on_the_real_machine_the_place_is_that_of_the_code_that_blocks(caplog: pytest.LogCaptureFixture) -> None:
    reported = threading.Event()

    class Listener(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if "its stack" in record.getMessage():
                reported.set()

    def blocks_the_loop() -> None:
        assert reported.wait(30)

    listener = Listener()
    logging.getLogger("asyncrl.runtime.watchdog").addHandler(listener)
    waits = WaitRegistry(RealHost())
    dog = Watchdog("agent-0", RealHost(), waits, REPORTING, stalled_after=0.1)
    over = asyncio.Event()
    loop = asyncio.get_running_loop()

    def told(seconds: float, place: str) -> None:
        loop.call_soon_threadsafe(over.set)

    dog.on_stall = told
    dog.start()
    blocks_the_loop()
    async with asyncio.timeout(10):
        await over.wait()
    dog.close()
    logging.getLogger("asyncrl.runtime.watchdog").removeHandler(listener)
    assert re.search(r"\(from unit/runtime/test_watchdog.py:\d+ blocks_the_loop\)", caplog.messages[0])
    assert "was blocked" in caplog.messages[-1]
    assert not [thread for thread in threading.enumerate() if "agent-0" in thread.name]
