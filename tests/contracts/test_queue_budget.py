"""A shard's budget: new rows wait their turn, what is in may grow, nothing is dropped, and who waits is told."""

import asyncio
import logging
from collections.abc import AsyncIterator

import numpy as np
import pytest

from asyncrl.errors import CallTimedOut
from asyncrl.runtime import ActorRef, ActorSystem
from asyncrl.tensors.wire import Column
from asyncrl.transfer_queue import budget as budget_module
from asyncrl.transfer_queue.client import TransferQueue
from asyncrl.transfer_queue.shard import QueueShard, ShardOptions

ROW = Column.dense(np.zeros((1, 10_000), np.uint8))
TAKEN = 10_000 + 1600
"""A row of 10 kB with what is counted for row and segment."""


@pytest.fixture
async def shard() -> AsyncIterator[ActorRef[QueueShard]]:
    async with ActorSystem.local() as system:
        yield await system.spawn(QueueShard, 0, ShardOptions(budget_bytes=5 * TAKEN), name="shard-0")


async def fill(queue: TransferQueue) -> None:
    for number in range(5):
        await queue.kv_put(f"r{number}", "train", {"x": ROW})


async def one_waits(queue: TransferQueue, producers: int = 1) -> None:
    """Returns once so many producers wait for room."""
    async with asyncio.timeout(5):
        # Each look is a call, in which the others get on.
        while len((await queue.stats())[0].waiting) != producers:
            pass


async def test_a_put_into_a_full_shard_waits_until_rows_are_cleared(shard: ActorRef[QueueShard]) -> None:
    queue = TransferQueue([shard])
    await fill(queue)
    late = asyncio.ensure_future(queue.kv_put("late", "train", {"x": ROW}))
    await one_waits(queue)
    stats = (await queue.stats())[0]
    assert (stats.waiting[0].who, stats.waiting[0].needed) == ("main", TAKEN)
    assert stats.used_bytes <= stats.budget_bytes
    assert not late.done()
    await queue.kv_clear(["r0"], "train")
    await late
    assert sorted(await queue.kv_list("train")) == ["late", "r1", "r2", "r3", "r4"]


async def test_producers_get_room_in_their_turn(shard: ActorRef[QueueShard]) -> None:
    queue = TransferQueue([shard])
    await fill(queue)
    order: list[int] = []

    async def produce(number: int) -> None:
        await queue.kv_put(f"late{number}", "train", {"x": ROW})
        order.append(number)

    tasks = []
    for number in range(3):
        tasks.append(asyncio.ensure_future(produce(number)))
        await one_waits(queue, number + 1)
    for number in range(3):
        await queue.kv_clear([f"r{number}"], "train")
        await tasks[number]
    assert order == [0, 1, 2]


async def test_rows_that_are_in_may_grow_and_markers_cost_no_room(shard: ActorRef[QueueShard]) -> None:
    queue = TransferQueue([shard])
    await fill(queue)
    await queue.kv_put("r1", "train", {"y": ROW})
    await queue.kv_put("marker", "train", tag={"status": "pending"})
    assert (await queue.kv_batch_get(["r1"], "train", ["y"]))["y"].rows == 1


async def test_a_producer_gives_up_at_its_deadline_and_leaves_the_line(shard: ActorRef[QueueShard]) -> None:
    queue = TransferQueue([shard])
    await fill(queue)
    with pytest.raises(CallTimedOut, match=r"QueueShard.room"):
        await TransferQueue([shard.with_deadline(0.1)]).kv_put("late", "train", {"x": ROW})
    await one_waits(queue, 0)
    await queue.kv_clear(["r0"], "train")
    await queue.kv_put("next", "train", {"x": ROW})


async def test_a_put_larger_than_the_whole_budget_is_refused_at_once(shard: ActorRef[QueueShard]) -> None:
    with pytest.raises(Exception, match=r"whose budget is 58000; put fewer rows at a time"):
        await TransferQueue([shard]).kv_put("big", "train", {"x": Column.dense(np.zeros((1, 100_000), np.uint8))})


async def test_who_waits_is_logged(shard: ActorRef[QueueShard], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(budget_module, "REPORT_SECONDS", 0.05)
    queue = TransferQueue([shard])
    await fill(queue)
    with caplog.at_level(logging.WARNING, "asyncrl.transfer_queue.budget"):
        late = asyncio.ensure_future(queue.kv_put("late", "train", {"x": ROW}))
        async with asyncio.timeout(5):
            while not caplog.messages:
                await queue.stats()
    assert caplog.messages[0] == f"shard 0 is full (58000 of 58000 bytes): main waits 0 s for {TAKEN} bytes, 1 producers wait"
    await queue.kv_clear(["r0"], "train")
    await late


async def test_room_that_nobody_comes_for_is_given_to_the_next(shard: ActorRef[QueueShard], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(budget_module, "RESERVED_SECONDS", 0.05)
    queue = TransferQueue([shard])
    await fill(queue)
    asked = asyncio.ensure_future(shard.call(QueueShard.room, TAKEN))
    await one_waits(queue)
    late = asyncio.ensure_future(queue.kv_put("late", "train", {"x": ROW}))
    await one_waits(queue, 2)
    await queue.kv_clear(["r0"], "train")
    assert await asked == 1
    async with asyncio.timeout(5):
        await late
