"""Room in a shard's budget: nobody waits for what is free, nobody is passed over, and a restart loses no place in the line."""

import asyncio
import errno
import os
import signal
import tracemalloc
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

from asyncrl.errors import CallTimedOut, Fenced, FieldExists, FieldMismatch, QueueFull, QueueStorageError, TransferError
from asyncrl.runtime import ActorRef, ActorSystem, endpoint
from asyncrl.runtime.files import DiskFolder
from asyncrl.tensors.wire import Column
from asyncrl.transfer_queue import compaction
from asyncrl.transfer_queue.client import Guard, Tag, TransferQueue
from asyncrl.transfer_queue.journal import Journal
from asyncrl.transfer_queue.rows import Stamp
from asyncrl.transfer_queue.shard import QueueShard, ShardOptions
from asyncrl.transfer_queue.table import CELL_BYTES, ROW_BYTES, SEGMENT_BYTES

ROW = Column.jagged("uint8", [np.zeros(10_000, np.uint8)])
SMALL = Column.jagged("uint8", [[1]])
TAKEN = 10_000 + ROW_BYTES + SEGMENT_BYTES + CELL_BYTES
SOON = 3.0
"""Seconds for what is to happen at once; room that is only kept for somebody is given up after ten."""


@pytest.fixture
async def shard() -> AsyncIterator[ActorRef[QueueShard]]:
    async with ActorSystem.local() as system:
        yield await system.spawn(QueueShard, 0, ShardOptions(budget_bytes=5 * TAKEN + 2 * ROW_BYTES), name="shard-0")


async def fill(queue: TransferQueue) -> None:
    """Five rows, which leave no room for another, and a marker with a lease."""
    await queue.kv_put("m", "train", tag={"lease": 2})
    for number in range(5):
        await queue.kv_put(f"r{number}", "train", {"x": ROW})


async def waiting(queue: TransferQueue, producers: int) -> None:
    """Returns once so many producers wait for room."""
    async with asyncio.timeout(5):
        # Each look is a call, in which the others get on.
        while len((await queue.stats())[0].waiting) != producers:
            pass


REFUSED: dict[type[TransferError], Mapping[str, object]] = {
    Fenced: {"guard": Guard("m", {"lease": 1})},
    FieldMismatch: {"fields": {"x": Column.dense([1.0, 2.0])}},
    FieldExists: {"keys": ["new", "r0"]},
}


@pytest.mark.parametrize("error", REFUSED)
async def test_what_is_refused_in_any_case_waits_for_no_room(shard: ActorRef[QueueShard], error: type[TransferError]) -> None:
    queue = TransferQueue([shard.with_deadline(SOON)])
    await fill(queue)
    both = Column.jagged("uint8", [np.zeros(10_000, np.uint8)] * 2)
    arguments: dict[str, object] = {"keys": ["new", "other"], "fields": {"x": both}, **REFUSED[error]}
    with pytest.raises(error):
        await queue.kv_batch_put(partition_id="train", **arguments)  # type: ignore[arg-type]
    assert (await queue.stats())[0].waiting == []


async def test_room_of_a_producer_that_is_fenced_in_the_line_goes_to_the_next(shard: ActorRef[QueueShard]) -> None:
    queue = TransferQueue([shard])
    await fill(queue)
    fenced = asyncio.ensure_future(queue.kv_put("late0", "train", {"x": ROW}, guard=Guard("m", {"lease": 2})))
    await waiting(queue, 1)
    late = asyncio.ensure_future(queue.kv_put("late1", "train", {"x": ROW}))
    await waiting(queue, 2)
    await queue.kv_set_tags(["m"], "train", [{"lease": 3}])
    await queue.kv_clear(["r0"], "train")
    async with asyncio.timeout(SOON):
        with pytest.raises(Fenced):
            await fenced
        await late
    assert sorted(await queue.kv_list("train")) == ["late1", "m", "r1", "r2", "r3", "r4"]


class FullDisk(DiskFolder):
    """A folder whose disk is full for one write when ``full`` is set."""

    full = False

    def write(self, descriptor: int, buffers: Sequence[Any]) -> int:
        if FullDisk.full:
            FullDisk.full = False
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return super().write(descriptor, buffers)


class ShardOnFullDisk(QueueShard):
    """A shard whose journal lies on such a disk."""

    def _journal(self) -> Journal | None:
        return Journal(FullDisk(self._options.journal_folder))


async def test_room_of_a_put_that_the_disk_refused_goes_to_the_next(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with ActorSystem.local() as system:
        options = ShardOptions(budget_bytes=5 * TAKEN + ROW_BYTES, journal="interval", journal_folder=str(tmp_path))
        queue = TransferQueue([await system.spawn(ShardOnFullDisk, 0, options, name="shard-0")])
        await fill(queue)
        refused = asyncio.ensure_future(queue.kv_put("late0", "train", {"x": ROW}))
        await waiting(queue, 1)
        late = asyncio.ensure_future(queue.kv_put("late1", "train", {"x": ROW}))
        await waiting(queue, 2)
        await queue.kv_clear(["r0"], "train")
        monkeypatch.setattr(FullDisk, "full", True)
        async with asyncio.timeout(SOON):
            with pytest.raises(QueueStorageError):
                await refused
            await late


async def test_a_value_that_is_overwritten_by_a_shorter_one_makes_room(shard: ActorRef[QueueShard]) -> None:
    queue = TransferQueue([shard])
    await fill(queue)
    late = asyncio.ensure_future(queue.kv_put("late", "train", {"x": ROW}))
    await waiting(queue, 1)
    for number in range(2):
        await queue.kv_put(f"r{number}", "train", {"x": SMALL}, overwrite=True)
    async with asyncio.timeout(SOON):
        await late


BATCH = 32 * (1000 + ROW_BYTES + CELL_BYTES) + SEGMENT_BYTES
"""What 32 rows take that are put together, and are far too small to be worth a copy on their own."""


@pytest.mark.parametrize("when", ["before the put", "while it waits"])
async def test_bytes_of_cleared_rows_are_room_however_few_of_a_put_they_were(when: str) -> None:
    async with ActorSystem.local() as system:
        shard = await system.spawn(QueueShard, 0, ShardOptions(budget_bytes=10 * BATCH), name="shard-0")
        queue = TransferQueue([shard.with_deadline(SOON)])
        for batch in range(10):
            keys = [f"b{batch}_{row}" for row in range(32)]
            await queue.kv_batch_put(keys, "train", {"x": Column.dense(np.full((32, 1000), batch, np.uint8))})
        # Eight batches' room, where the dead bytes of the segments alone are more than nine.
        width = 8 * BATCH // 32 - ROW_BYTES - CELL_BYTES - SEGMENT_BYTES
        keys = [f"n{row}" for row in range(32)]
        put = queue.kv_batch_put(keys, "train", {"y": Column.dense(np.zeros((32, width), np.uint8))})
        gone = [f"b{batch}_{row}" for batch in range(10) for row in range(1, 32)]
        if when == "before the put":
            await queue.kv_clear(gone, "train")
            await put
        else:
            late = asyncio.ensure_future(put)
            await waiting(queue, 1)
            await queue.kv_clear(gone, "train")
            await late
        stats = (await queue.stats())[0]
        assert stats.used_bytes <= stats.budget_bytes
        kept = (await queue.kv_batch_get([f"b{batch}_0" for batch in range(10)], "train", ["x"]))["x"]
        assert kept.values[:, 0].tolist() == list(range(10))


class ShardOfSmallFiles(QueueShard):
    """A shard whose journal is compacted all the time."""

    def _journal(self) -> Journal | None:
        return Journal(DiskFolder(self._options.journal_folder), file_bytes=2000)


async def test_what_compaction_frees_is_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with ActorSystem.local() as system:
        budget = ROW_BYTES + 10 * (1000 + ROW_BYTES + CELL_BYTES) + SEGMENT_BYTES
        options = ShardOptions(budget_bytes=budget, journal="always", journal_folder=str(tmp_path))
        queue = TransferQueue([await system.spawn(ShardOfSmallFiles, 0, options, name="shard-0")])
        await queue.kv_put("m", "train", tag={"n": 0})
        await queue.kv_batch_put([f"r{row}" for row in range(10)], "train", {"x": Column.dense(np.zeros((10, 1000), np.uint8))})
        # Less than half of the column: only the journal's compaction copies the others.
        await queue.kv_clear([f"r{row}" for row in range(4)], "train")
        free = budget - (await queue.stats())[0].used_bytes
        late = asyncio.ensure_future(queue.kv_put("late", "train", {"y": Column.dense(np.zeros((1, free), np.uint8))}))
        await waiting(queue, 1)
        monkeypatch.setattr(compaction, "SPARE_BYTES", 0)
        async with asyncio.timeout(5):
            while not late.done():
                await queue.kv_set_tags(["m"], "train", [{"n": "x" * 500}])
        await late


@pytest.mark.parametrize(("puts", "rows", "fields"), [(150, 1, 1), (100, 1, 8), (10, 256, 2), (4, 256, 40)])
async def test_what_counts_is_what_the_rows_take(puts: int, rows: int, fields: int) -> None:
    async with ActorSystem.local() as system:
        queue = TransferQueue([await system.spawn(QueueShard, 0, name="shard-0")])
        await queue.kv_put("first", "train", {"x": SMALL})
        before = (await queue.stats())[0].used_bytes
        tracemalloc.start()
        try:
            for number in range(puts):
                keys = [f"u{number}_{row}_0" for row in range(rows)]
                columns = {f"f{field}": Column.jagged("int64", [[1]] * rows) for field in range(fields)}
                await queue.kv_batch_put(keys, "train", columns, [{"status": "success"} for _ in keys])
            del keys, columns
            taken = tracemalloc.get_traced_memory()[0]
        finally:
            tracemalloc.stop()
        counted = (await queue.stats())[0].used_bytes - before
        assert taken <= 1.2 * counted <= 2.4 * taken


class AlwaysFull(QueueShard):
    """A shard that promises room and never has any."""

    @endpoint(idempotent=True)
    async def put(
        self,
        keys: list[str],
        partition_id: str,
        fields: dict[str, Column],
        tags: dict[str, Tag],
        guard: Guard | None,
        overwrite: bool,
        stamp: Stamp,
        ticket: int,
    ) -> None:
        raise QueueFull(0, 1, 1, 1)

    @endpoint
    async def room(self, needed: int) -> int:
        return 1


async def test_all_rounds_of_a_put_have_the_time_of_one_call() -> None:
    async with ActorSystem.local() as system:
        full = await system.spawn(AlwaysFull, 0, name="shard-0")
        shard = system.ref(full.address, QueueShard)
        async with asyncio.timeout(3 * 0.3):
            with pytest.raises(CallTimedOut) as late:
                await TransferQueue([shard.with_deadline(0.3)]).kv_put("u", "train", {"x": SMALL})
        assert late.value.seconds == 0.3


def kill(name: str) -> None:
    for process in psutil.Process().children(recursive=True):
        if f"asyncrl:{name}" in process.cmdline():
            os.kill(process.pid, signal.SIGKILL)
            return
    raise AssertionError(f"{name} does not run")


async def test_who_waits_for_room_at_a_shard_that_dies_waits_at_its_next_life(tmp_path: Path) -> None:
    async with ActorSystem.local() as system:
        options = ShardOptions(budget_bytes=5 * TAKEN + ROW_BYTES, journal="interval", journal_folder=str(tmp_path))
        shard = await system.spawn(QueueShard, 0, options, name="shard-0", process="shard-0", restarts=2)
        queue = TransferQueue([shard.with_deadline(20.0)])
        await fill(queue)
        late = asyncio.ensure_future(queue.kv_put("late", "train", {"x": ROW}))
        await waiting(queue, 1)
        kill("shard-0")
        await waiting(queue, 1)
        assert not late.done()
        await queue.kv_clear(["r0"], "train")
        await late
        assert sorted(await queue.kv_list("train")) == ["late", "m", "r1", "r2", "r3", "r4"]
