"""A snapshot is the rows of one moment, whatever changes while it is written, and is refused when it is not as it was written."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from asyncrl.errors import QueueStorageError
from asyncrl.runtime import ActorSystem
from asyncrl.runtime.files import DiskFolder
from asyncrl.tensors.wire import Column
from asyncrl.transfer_queue import snapshot
from asyncrl.transfer_queue.client import TransferQueue
from asyncrl.transfer_queue.rows import Cut, Origin
from asyncrl.transfer_queue.shard import QueueShard
from asyncrl.transfer_queue.storage import ShardStorage
from asyncrl.transfer_queue.table import ShardTable
from tests.unit.transfer_queue.test_journal import AT, seen


def filled() -> ShardStorage:
    storage = ShardStorage(ShardTable(0, "life"), None)
    for number in range(600):
        values = Column.jagged("float32", [np.full(number % 7 * 50, number, np.float32)])
        tag = {"n": number} if number % 2 else {}
        storage.put([f"r{number}"], "train" if number % 3 else "val", {"x": values}, {f"r{number}": tag}, Origin("a", number, number))
    storage.put(["r1", "r2"], "train", {"y": Column.strings(["one", "two"])}, {}, AT)
    return storage


def restored(folder: DiskFolder) -> ShardStorage:
    storage = ShardStorage(ShardTable(0, "next life"), None)
    storage.restore(snapshot.load(folder)[1])
    return storage


def test_it_holds_the_rows_of_the_moment_at_which_it_was_taken(tmp_path: Path) -> None:
    storage, folder = filled(), DiskFolder(str(tmp_path))
    before = {name: seen(storage, name) for name in ("train", "val")}
    rows, event = storage.rows_now(), storage.table.event
    storage.clear([f"r{number}" for number in range(0, 600, 2)], "train")
    storage.set_tags({"r1": {"n": 77}}, "train", AT)
    storage.put(["new"], "train", {}, {"new": {}}, AT)
    manifest = snapshot.write(folder, 0, "life", event, rows)
    assert (manifest.event, manifest.rows) == (601, 600)
    again = restored(folder)
    assert {name: seen(again, name) for name in ("train", "val")} == before
    segment, index = again.table.partitions["train"].rows["r5"].cells["x"]
    assert segment.origin(index) == Origin("a", 5, 5)


def test_it_is_hardly_larger_than_the_rows(tmp_path: Path) -> None:
    storage = ShardStorage(ShardTable(0, "life"), None)
    for number in range(500):
        storage.put([f"r{number}_0"], "train", {"x": Column.dense(np.ones((1, 1024), np.float32))}, {f"r{number}_0": {"n": 1}}, AT)
    manifest = snapshot.write(DiskFolder(str(tmp_path)), 0, "life", 500, storage.rows_now())
    assert storage.table.stored_bytes <= manifest.size <= 1.05 * storage.table.stored_bytes


def test_any_damage_is_refused_by_the_name_of_its_file(tmp_path: Path) -> None:
    storage, folder = filled(), DiskFolder(str(tmp_path))
    snapshot.write(folder, 0, "life", 1, storage.rows_now())
    path = tmp_path / "00000001.atq"
    whole = path.read_bytes()
    for damaged in (whole[:-1], whole[:1000] + bytes([whole[1000] ^ 4]) + whole[1001:], b""):
        path.write_bytes(damaged)
        with pytest.raises(QueueStorageError, match=r"00000001.atq: its size or its SHA-256"):
            restored(folder)
    path.unlink()
    with pytest.raises(QueueStorageError, match=r"00000001.atq: it cannot be read"):
        restored(folder)
    (tmp_path / "manifest.json").write_text("{}")
    with pytest.raises(QueueStorageError, match=r"manifest.json: it cannot be read"):
        restored(folder)


def test_files_of_an_earlier_format_are_refused_by_name(tmp_path: Path) -> None:
    storage, folder = filled(), DiskFolder(str(tmp_path))
    snapshot.write(folder, 0, "life", 1, storage.rows_now())
    path = tmp_path / "00000001.atq"
    path.write_bytes(b"ATQ1" + path.read_bytes()[4:])
    with pytest.raises(QueueStorageError, match=r"00000001.atq: it is in format ATQ1"):
        restored(folder)


class Full(DiskFolder):
    """A disk that takes ``left`` more writes; counts what is open."""

    left, open = 1, 0

    def create(self, name: str) -> int:
        descriptor = super().create(name)
        self.open += 1
        return descriptor

    def close(self, descriptor: int) -> None:
        super().close(descriptor)
        self.open -= 1

    def write(self, descriptor: int, buffers: Any) -> int:
        self.left -= 1
        if self.left < 0:
            super().write(descriptor, [b"half"])
            raise OSError(28, "No space left on device")
        return super().write(descriptor, buffers)


def test_one_that_failed_leaves_nothing_open_and_the_next_takes_its_place(tmp_path: Path) -> None:
    storage, folder = filled(), Full(str(tmp_path))
    rows = storage.rows_now()
    for left in (0, 1, 3, 4):
        folder.left = left
        with pytest.raises(QueueStorageError, match="the snapshot of shard 0 cannot be written: No space left on device"):
            snapshot.write(folder, 0, "life", 1, rows)
        assert folder.open == 0
        with pytest.raises(QueueStorageError, match=r"manifest.json: it cannot be read"):
            restored(folder)
    folder.left = 1 << 30
    snapshot.write(folder, 0, "life", 1, rows)
    assert folder.open == 0
    again = restored(folder)
    assert {name: seen(again, name) for name in ("train", "val")} == {name: seen(storage, name) for name in ("train", "val")}
    assert folder.names() == ["00000001.atq", "manifest.json"]


async def test_a_shard_writes_the_cut_that_is_named_and_refuses_every_other(tmp_path: Path) -> None:
    async with ActorSystem.local() as system:
        queue = TransferQueue([await system.spawn(QueueShard, slot, name=f"shard-{slot}") for slot in range(2)])
        keys = [f"k{number}_0" for number in range(8)]
        await queue.kv_batch_put(keys, "train", {"x": Column.dense(list(range(8)))})
        old = await queue.cut([], "train")
        cuts = await queue.cut([keys[0]], "train")
        assert [cut.event for cut in old] == [cut.event for cut in cuts] == [1, 1]
        await queue.kv_clear(keys, "train")
        with pytest.raises(QueueStorageError, match=r"shard-\d: the rows of event 1 of incarnation .* are gone: the shard is incarnation"):
            await queue.snapshot(str(tmp_path), old)
        with pytest.raises(QueueStorageError, match=r"the rows of event 1 of incarnation another life are gone"):
            await queue.snapshot(str(tmp_path), [Cut("another life", cut.event, cut.number) for cut in cuts])
        manifests = await queue.snapshot(str(tmp_path), cuts)
        assert sum(manifest.rows for manifest in manifests) == 7
        assert [(found.incarnation, found.event) for found in manifests] == [(cut.incarnation, cut.event) for cut in cuts]
        # Its rows are not kept any longer.
        with pytest.raises(QueueStorageError):
            await queue.snapshot(str(tmp_path), cuts)
        assert [manifest.rows for manifest in await queue.snapshot(str(tmp_path))] == [0, 0]


def test_without_rows_there_is_a_manifest_alone(tmp_path: Path) -> None:
    folder = DiskFolder(str(tmp_path))
    manifest = snapshot.write(folder, 0, "life", 0, ShardStorage(ShardTable(0, "life"), None).rows_now())
    assert (manifest.rows, manifest.files) == (0, [])
    assert seen(restored(folder)) == {}
