"""The registry of waits: listed, described, overdue, long."""

import asyncio

from hypothesis import given, settings, strategies as st

from asyncrl.runtime import Wait, WaitRegistry
from asyncrl.runtime.waits import FOREVER
from tests.unit.runtime.hand_host import HandHost


async def test_waits_are_described_oldest_first_in_whole_seconds() -> None:
    host = HandHost()
    waits = WaitRegistry(host)
    waits.enter("shard-0", "kv_batch_put", 5.0)
    host.now += 40.4
    with waits.waiting("rank1", "start of PolicyWorker"):
        host.now += 1.6
        assert waits.describe() == ["42 s for shard-0: kv_batch_put", "2 s for rank1: start of PolicyWorker"]
    assert waits.describe() == ["42 s for shard-0: kv_batch_put"]
    waits.close()


async def test_a_wait_is_overdue_two_seconds_after_its_budget_counted_from_its_last_progress() -> None:
    host = HandHost()
    waits = WaitRegistry(host, stall=60.0)
    deadline, silence = waits.enter("a", "deadline of 5 s", 5.0), waits.enter("b", "silence of 5 s", 5.0)
    waits.enter("c", "no limit of its own")
    waits.enter("d", "may last", FOREVER)
    host.now += 4.0
    silence.touched = host.now
    host.now += 3.0
    assert waits.overdue() == []
    host.now += 0.5
    assert waits.overdue() == [deadline]
    host.now += 3.9
    assert [wait.what for wait in waits.overdue()] == ["silence of 5 s"]
    host.now += 50.7
    assert [wait.what for wait in waits.overdue()] == ["no limit of its own"]
    host.now += 1e9
    assert waits.overdue() == []
    waits.close()


@settings(max_examples=25)
@given(st.lists(st.tuples(st.integers(0, 9), st.sampled_from([0.0, 1.0, 3.0, FOREVER]), st.integers(0, 9)), max_size=8))
async def test_overdue_waits_are_those_and_only_those(given_waits: list[tuple[int, float, int]]) -> None:
    host = HandHost()
    waits = WaitRegistry(host, stall=2.0)
    entered: list[tuple[Wait, float]] = []
    for start, budget, touched in sorted(given_waits):
        host.now = 100.0 + start
        wait = waits.enter("who", "what", budget)
        wait.touched = 100.0 + touched if touched > start else 0.0
        entered.append((wait, 100.0 + max(start, touched if touched > start else 0) + (budget or 2.0) + 2.0))
    for now in range(109, 120):
        host.now = float(now)
        assert waits.overdue() == [wait for wait, end in entered if now - 1 <= end < now or (now == 109 and end < now)]
    waits.close()


async def test_only_waits_of_a_second_or_more_are_told_and_each_once() -> None:
    host = HandHost()
    waits = WaitRegistry(host)
    told: list[tuple[str, float]] = []
    waits.on_long = lambda wait, seconds: told.append((wait.what, seconds))
    short, long = waits.enter("a", "short"), waits.enter("a", "long")
    host.now += 0.75
    assert waits.leave(short) == 0.75
    host.now += 0.25
    assert waits.leave(long) == 1.0
    host.now += 5.0
    waits.leave(long)
    assert told == [("long", 1.0)]
    waits.close()


async def test_a_cancelled_block_ends_its_wait() -> None:
    waits = WaitRegistry(HandHost())

    async def hang() -> None:
        with waits.waiting("a", "for ever"):
            await asyncio.Event().wait()

    task = asyncio.ensure_future(hang())
    await asyncio.sleep(0)
    assert len(waits.snapshot()) == 1
    task.cancel()
    await asyncio.wait([task])
    assert waits.snapshot() == []
    waits.close()
