"""A snapshot is the rows of one moment, whatever changes while it is written, and is refused when it is not as it was written."""

from pathlib import Path

import numpy as np
import pytest

from asyncrl.errors import QueueStorageError
from asyncrl.runtime.files import DiskFolder
from asyncrl.tensors.wire import Column
from asyncrl.transfer_queue import snapshot
from asyncrl.transfer_queue.rows import Origin
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


def test_without_rows_there_is_a_manifest_alone(tmp_path: Path) -> None:
    folder = DiskFolder(str(tmp_path))
    manifest = snapshot.write(folder, 0, "life", 0, ShardStorage(ShardTable(0, "life"), None).rows_now())
    assert (manifest.rows, manifest.files) == (0, [])
    assert seen(restored(folder)) == {}
