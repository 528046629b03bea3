"""A disk without room refuses puts and compaction by name, and nothing else: the shard lives, and goes on when there is room."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from asyncrl.errors import QueueStorageError
from asyncrl.runtime import ActorSystem, RealHost
from asyncrl.runtime.files import DiskFolder, StorageFolder
from asyncrl.tensors.wire import Column
from asyncrl.transfer_queue import compaction, shard as shard_module
from asyncrl.transfer_queue.client import TransferQueue
from asyncrl.transfer_queue.shard import QueueShard, ShardOptions


class Disk:
    """Whether there is room, and what became of writes of many rows: that is compaction, here."""

    def __init__(self) -> None:
        self.full = False
        self.refused, self.dropped = asyncio.Event(), asyncio.Event()


class Folder(DiskFolder):
    """A folder on it."""

    def __init__(self, path: str, disk: Disk) -> None:
        super().__init__(path)
        self._disk = disk

    def write(self, descriptor: int, buffers: Any) -> int:
        if self._disk.full and sum(memoryview(buffer).nbytes for buffer in buffers) > 1000:
            self._disk.refused.set()
            raise OSError(28, "No space left on device")
        return super().write(descriptor, buffers)

    def remove(self, name: str) -> None:
        super().remove(name)
        self._disk.dropped.set()


class Host(RealHost):
    """A machine with that disk."""

    def __init__(self, disk: Disk) -> None:
        super().__init__()
        self._disk = disk

    def storage(self, path: str) -> StorageFolder:
        return Folder(path, self._disk)


async def test_compaction_on_a_full_disk_waits_for_room_and_costs_no_put(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compaction, "SPARE_BYTES", 20_000)
    monkeypatch.setattr(shard_module, "SYNC_SECONDS", 0.01)
    disk = Disk()
    async with ActorSystem.local(Host(disk)) as system:
        # What the attempt before wrote lies in files of its own, which compaction may take.
        options = ShardOptions(journal="always", journal_folder=str(tmp_path))
        first = TransferQueue([await system.spawn(QueueShard, 0, options, name="first")])
        keys = [f"live{number}" for number in range(20)]
        await first.kv_batch_put(keys, "train", {"x": Column.jagged("int64", [[1] * 100] * 20)})
        for number in range(12):
            await first.kv_put("c", "train", {"x": Column.jagged("int64", [[number] * 500])}, overwrite=True)
        disk.full = True
        queue = TransferQueue([(await system.spawn(QueueShard, 0, options, name="second")).with_deadline(10.0)])
        with pytest.raises(QueueStorageError, match="No space left on device"):
            await queue.kv_put("large", "train", {"x": Column.jagged("int64", [[1] * 500])})
        async with asyncio.timeout(10.0):
            for number in range(3):
                await queue.kv_put(f"small{number}", "train", tag={"n": number})
            await disk.refused.wait()
            disk.refused.clear()
            # It is tried again, and refused again.
            await disk.refused.wait()
            await queue.kv_put("later", "train", tag={"n": 9})
            disk.full = False
            disk.dropped.clear()
            await disk.dropped.wait()
        found = await queue.kv_batch_get(["c", *keys], "train", ["x"])
        assert found["x"].to_list() == [[11] * 500, *[[1] * 100] * 20]
        assert len(await queue.kv_list("train")) == 25
