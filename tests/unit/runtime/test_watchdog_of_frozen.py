"""A watcher does not hold against a process the time in which that could not run, nor the time that it took itself."""

import asyncio
import re
import threading
from pathlib import Path

import pytest
from hypothesis import given, settings, strategies as st

from asyncrl.runtime import WaitRegistry
from asyncrl.runtime.loop_health import Look, LoopHealth
from asyncrl.runtime.watchdog import Watchdog
from asyncrl.runtime.watching import Watching
from tests.unit.runtime.hand_host import HandHost

STRICT = Watching(budget=60.0, end_when_stuck=True)


class Watched:
    """A watcher on a host that is moved by hand, beside a loop that has answered its first ping."""

    def __init__(self, watching: Watching = STRICT) -> None:
        self.host = HandHost()
        self.waits = WaitRegistry(self.host)
        self.dog = Watchdog("agent-0", self.host, self.waits, watching)
        self.dog.start()

    async def turns(self, *seconds: float) -> None:
        """Time passes, and the loop turns after each look."""
        for each in seconds:
            self.host.tick(each)
            await asyncio.sleep(0)

    def close(self) -> None:
        self.dog.close()
        self.waits.close()


@pytest.mark.parametrize("frozen", [2.4, 6.6, 1000.0], ids=lambda seconds: f"{seconds:g}")
async def test_a_wait_that_ran_out_while_its_process_was_frozen_may_end_by_its_own_timer(
    frozen: float, caplog: pytest.LogCaptureFixture
) -> None:
    watched = Watched()
    await watched.turns(1.0, 1.0)
    wait = watched.waits.enter("queue@shard-0", "QueueShard.put", 0.3)
    await watched.turns(frozen, 1.0, 1.0)
    watched.waits.leave(wait)
    await watched.turns(1.0, 1.0)
    assert watched.host.ended is None
    assert not [line for line in caplog.messages if "waited" in line]
    watched.close()


async def test_a_wait_that_does_not_end_after_a_freeze_either_is_overdue_two_seconds_after_it() -> None:
    reports: list[str] = []
    watched = Watched()
    watched.dog.on_stuck = reports.append
    watched.waits.enter("queue@shard-0", "QueueShard.put", 3.0)
    ends = []
    for seconds in (1.0, 7.0, 1.0, 1.0, 1.0):
        await watched.turns(seconds)
        ends.append(watched.host.ended)
    assert ends == [None, None, None, None, 1]
    (report,) = reports
    assert report == "waited 11.0 s for queue@shard-0: QueueShard.put, 2 s past its limit of 3 s, the process ends"
    watched.close()


async def test_a_wait_that_ends_while_the_last_words_are_gathered_does_not_end_the_process(caplog: pytest.LogCaptureFixture) -> None:
    watched = Watched()
    wait = watched.waits.enter("queue@shard-0", "QueueShard.put", 1.0)
    asked: list[str] = []

    def answers(process: str) -> str:
        asked.append(process)
        watched.waits.leave(wait)
        return ""

    watched.dog.ask = answers
    await watched.turns(1.0, 1.0, 1.0, 1.0, 1.0)
    assert (asked, watched.host.ended) == (["shard-0"], None)
    (line,) = caplog.messages
    assert line == "waited 4.0 s for queue@shard-0: QueueShard.put, 2 s past its limit of 1 s; it has ended meanwhile"
    watched.close()


async def test_a_loop_is_looked_after_while_silent_processes_are_asked_for_their_stacks(
    caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    answer, told = threading.Event(), threading.Semaphore(0)
    watched = Watched(Watching(budget=None, stacks=str(tmp_path)))

    def silent(process: str) -> str:
        assert answer.wait(30)
        told.release()
        return f"the stacks of {process}"

    watched.dog.ask = silent
    watched.waits.enter("shard-0", "a", 1.0)
    await watched.turns(1.0, 1.0, 1.0)
    # Here the wait is overdue. Its report waits for the other, the watcher does not, and the next ping goes out.
    watched.host.tick(1.0)
    watched.host.tick(1.0)
    (stalled,) = caplog.messages
    assert re.match(r"event loop of agent-0 blocked 1.0 s in ", stalled)
    answer.set()
    assert told.acquire(timeout=30)
    for thread in threading.enumerate():
        if thread.name == "report of agent-0":
            thread.join(30)
    (report,) = [line for line in caplog.messages if line.startswith("waited")]
    assert f"stacks of shard-0: {tmp_path}/stacks-shard-0-2.txt" in report
    assert (tmp_path / "stacks-shard-0-2.txt").read_text() == "the stacks of shard-0\n"
    await asyncio.sleep(0)
    watched.close()


async def test_a_log_that_takes_its_time_does_not_make_the_next_look_late(caplog: pytest.LogCaptureFixture) -> None:
    """Each report takes a second, as one that is waited for does at most: together they are no freeze."""
    watched = Watched(Watching(budget=None))

    def slow(process: str) -> str:
        watched.host.now += 1.0
        return ""

    watched.dog.ask = slow
    for shard in range(4):
        watched.waits.enter(f"shard-{shard}", "put", 1.0)
    await watched.turns(*[1.0] * 6)
    assert len(caplog.messages) == 4
    assert not [line for line in caplog.messages if "blocked" in line]
    watched.close()


def test_the_time_that_a_look_took_makes_the_next_one_no_later_and_more_than_that_does() -> None:
    health = LoopHealth(1.0, 5.0, 0.0)
    health.sent(0.0)
    health.answer(0.0)
    health.excuse(6.0)
    assert (health.look(7.0), health.held_up) == (Look("answered", 0.0), False)
    health.sent(7.0)
    health.excuse(6.0)
    assert health.look(20.0) == Look("stood still", 6.0)


@settings(max_examples=60)
@given(
    limit=st.integers(1, 40),
    pieces=st.lists(st.tuples(st.integers(2, 12), st.one_of(st.integers(0, 3), st.integers(0, 60))), min_size=1, max_size=8),
)
async def test_a_timer_that_is_served_whenever_the_process_runs_is_never_found_overdue(limit: int, pieces: list[tuple[int, int]]) -> None:
    """``pieces`` are (runs, is frozen), all in quarters of a second; the watcher wakes first, the loop a quarter later."""
    host = HandHost()
    host.now = 0.0
    waits, health = WaitRegistry(host), LoopHealth(1.0, None, 0.0)
    wait = waits.enter("shard-0", "put", limit / 4)
    now, due = 0, 4
    for runs, frozen in [*pieces, (60, 0)]:
        for quarter in range(runs):
            now += 1
            host.now = now / 4
            if now >= due:
                health.look(host.now)
                if health.held_up:
                    waits.spare()
                assert waits.overdue() == []
                health.sent(host.now)
                health.answer(host.now)
                due = now + 4
            if now > limit and quarter >= 1:
                waits.leave(wait)
        now += frozen
    assert not waits.lasts(wait)
    waits.close()
