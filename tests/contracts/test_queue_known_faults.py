"""Faults that other data layers had: values that change their kind, late clears, leaks, a busy caller. Each with what is right."""

import asyncio
import gc
import os
import time
from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import Any

import psutil
import pytest

from asyncrl.errors import MissingField, UnknownRow
from asyncrl.runtime import ActorSystem
from asyncrl.tensors.batch import Batch
from asyncrl.tensors.jagged import Jagged
from asyncrl.tensors.wire import Column
from asyncrl.transfer_queue.client import TransferQueue
from asyncrl.transfer_queue.shard import QueueShard
from tests.faults.test_queue_faults import Client

OPERATIONS = 10_000
CLIENTS = 8


@pytest.fixture
async def queue() -> AsyncIterator[TransferQueue]:
    """Three shards in this process."""
    async with ActorSystem.local() as system:
        yield TransferQueue([await system.spawn(QueueShard, slot, name=f"shard-{slot}") for slot in range(3)])


@pytest.mark.parametrize(
    ("first", "second"), [([[1, 2], [3, 4]], [[5], [6, 7, 8]]), ([[5], [6, 7, 8]], [[1, 2], [3, 4]]), ([[], []], [[1], []])]
)
async def test_a_field_keeps_its_kind_whatever_lengths_its_rows_happen_to_have(
    queue: TransferQueue, first: list[list[int]], second: list[list[int]]
) -> None:
    keys = ["a_0_0", "b_0_0", "c_0_0", "d_0_0"]
    await queue.kv_batch_put(keys[:2], "train", {"x": Column.jagged("int64", first)})
    await queue.kv_batch_put(keys[2:], "train", {"x": Column.jagged("int64", second)})
    for asked, rows in ((keys[:2], first), (keys[2:], second), (keys, first + second), (keys[:1], first[:1])):
        column = (await queue.kv_batch_get(asked, "train", ["x"]))["x"]
        assert column.layout == ("int64", (), True)
        field = Batch.from_columns(asked, {"x": column})["x"]
        assert isinstance(field, Jagged)
        assert [row.tolist() for row in field.to_rows()] == rows


async def test_the_longest_row_is_that_of_the_lengths_and_the_padding_no_wider(queue: TransferQueue) -> None:
    keys = ["a_0_0", "b_0_0", "c_0_0"]
    await queue.kv_batch_put(keys, "train", {"x": Column.jagged("int64", [[1] * 3, [2] * 5, [3] * 4])})
    rows = Batch.from_columns(keys, await queue.kv_batch_get(keys, "train", ["x"])).jagged("x")
    assert rows.longest == 5
    assert rows.padded().shape == (3, 5)
    assert rows.padded().nbytes == 3 * 5 * 8


async def test_an_empty_answer_is_a_row_like_others_also_where_all_are_empty(queue: TransferQueue) -> None:
    keys = ["a_0_0", "b_0_0", "c_0_0"]
    await queue.kv_batch_put(keys, "train", {"x": Column.jagged("float32", [[], [0.5], []])})
    for asked, shape in ((keys, (3, 1)), (["a_0_0", "c_0_0"], (2, 0)), (["c_0_0"], (1, 0))):
        rows = Batch.from_columns(asked, await queue.kv_batch_get(asked, "train", ["x"])).jagged("x")
        assert rows.padded().shape == shape
        assert rows.mask().sum() == len(rows.values)


async def test_nothing_is_an_object_and_a_field_that_was_not_written_is_an_error(queue: TransferQueue) -> None:
    given: list[Any] = [None, {"note": None}, []]
    keys = ["a_0_0", "b_0_0", "c_0_0"]
    await queue.kv_batch_put(keys, "train", {"extra": Column.objects(given)}, [{"n": None}, {}, {}])
    assert (await queue.kv_batch_get(keys, "train", ["extra"]))["extra"].to_list() == given
    assert dict(await queue.kv_list("train", {"n": None})) == {"a_0_0": {"n": None}}
    await queue.kv_put("a_0_0", "train", {"later": Column.dense([1.0])})
    with pytest.raises(MissingField) as missing:
        await queue.kv_batch_get(keys, "train", ["extra", "later"])
    assert (missing.value.field, missing.value.known) == ("later", ("extra",))


async def test_eight_clients_that_put_and_clear_the_same_keys_in_two_partitions_leave_what_dicts_hold(queue: TransferQueue) -> None:
    """Four pairs; both of a pair do the same to the same keys, side by side. A late clear would take the rows of who came after."""
    clients = [Client(queue, number, partition) for number in range(CLIENTS // 2) for partition in ("train", "val")]
    done = asyncio.Semaphore(0)
    async with asyncio.TaskGroup() as group:
        for client in clients:
            group.create_task(client.run(OPERATIONS // CLIENTS, done))
    for partition, theirs in (("train", clients[::2]), ("val", clients[1::2])):
        rows = {key: row for client in theirs for key, row in client.rows.items()}
        assert await queue.kv_list(partition) == {key: tag for key, (tag, _) in rows.items()}
        for name in "xy":
            keys = [key for key, (_, fields) in rows.items() if name in fields]
            assert (await queue.kv_batch_get(keys, partition, [name]))[name].to_list() == [rows[key][1][name] for key in keys]
        for _ in range(2):
            await queue.kv_clear([*rows, "never_0_0"], partition)
        assert await queue.kv_list(partition) == {}
    assert all(client.checked for client in clients)
    assert [(shard.segments, shard.stored_bytes, shard.partitions) for shard in await queue.stats()] == [(0, 0, {})] * 3


async def test_a_key_that_was_cleared_is_free_for_a_row_of_any_kind(queue: TransferQueue) -> None:
    for round_, column in enumerate((Column.jagged("int64", [[1]]), Column.dense([1.0]), Column.strings(["x"]))):
        await queue.kv_put("a_0_0", "train", {"x": column}, {"round": round_})
        assert (await queue.kv_batch_get(["a_0_0"], "train", ["x"]))["x"].layout == column.layout
        await queue.kv_clear(["a_0_0"], "train")
        with pytest.raises(UnknownRow):
            await queue.kv_batch_get(["a_0_0"], "train", ["x"])


def held(process: psutil.Process) -> int:
    """Open files of a process."""
    return len(os.listdir(f"/proc/{process.pid}/fd"))


async def one_step(queue: TransferQueue, number: int) -> None:
    """What a step does to the queue: markers, rows, a stage's field, a read, a watch that comes and goes, and the end of it all."""
    uids = [f"s{number}p{prompt}" for prompt in range(4)]
    keys = [f"{uid}_{session}_0" for uid in uids for session in range(4)]
    rows = Column.jagged("int64", [[number] * 200 for _ in keys])
    await queue.kv_batch_put(uids, "train", tags=[{"is_prompt": True}] * 4)
    await queue.kv_batch_put(keys, "train", {"responses": rows}, [{"status": "success"}] * 16)
    async with aclosing(queue.watch("train", {"is_prompt": True})) as events:
        await anext(events)
        await queue.kv_batch_put(keys, "train", {"mask": rows})
    found = await queue.kv_batch_get(keys, "train", ["responses", "mask"])
    assert found["mask"].rows == 16
    await queue.kv_clear([*uids, *keys], "train")


async def test_two_hundred_steps_leave_no_file_and_no_memory_on_either_side() -> None:
    async with ActorSystem.local() as system:
        shards = [await system.spawn(QueueShard, slot, name=f"shard-{slot}", process=f"shard-{slot}") for slot in range(2)]
        queue = TransferQueue(shards)
        theirs = [each for each in psutil.Process().children(recursive=True) if any("asyncrl:shard-" in part for part in each.cmdline())]
        assert len(theirs) == 2
        processes = [psutil.Process(), *theirs]
        for number in range(50):
            await one_step(queue, number)
        gc.collect()
        before = [(held(each), each.memory_info().rss) for each in processes]
        for number in range(50, 250):
            await one_step(queue, number)
        gc.collect()
        for process, (files, resident) in zip(processes, before, strict=True):
            assert held(process) == files
            assert process.memory_info().rss - resident < 200 * 50_000
        assert [(shard.stored_bytes, shard.segments, shard.watchers, shard.partitions) for shard in await queue.stats()] == [
            (0, 0, 0, {})
        ] * 2


async def test_a_put_whose_caller_is_busy_for_longer_than_its_deadline_succeeds() -> None:
    """The answer lies there when the caller's loop turns again: that it was not looked at in time is no failure of the shard."""
    async with ActorSystem.local() as system:
        shard = await system.spawn(QueueShard, 0, name="shard-0", process="shard-0")
        queue = TransferQueue([shard.with_deadline(0.4)])
        await queue.kv_put("a_0_0", "train", {"x": Column.dense([0])})
        put = asyncio.get_running_loop().create_task(queue.kv_put("b_0_0", "train", {"x": Column.dense([1])}))
        await asyncio.sleep(0)
        until = time.monotonic() + 0.8
        while time.monotonic() < until:  # what a caller does that computes in its event loop
            pass
        await put
        assert (await queue.kv_batch_get(["b_0_0"], "train", ["x"]))["x"].to_list() == [1]
