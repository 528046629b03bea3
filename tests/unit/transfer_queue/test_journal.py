"""What a shard writes to disk comes back: after a kill at any byte, a flipped bit, a full disk, a compaction."""

import itertools
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

from asyncrl.errors import QueueStorageError, UnknownRow
from asyncrl.runtime.files import DiskFolder
from asyncrl.tensors.wire import Column
from asyncrl.transfer_queue import compaction, records
from asyncrl.transfer_queue.journal import Journal
from asyncrl.transfer_queue.records import Damage
from asyncrl.transfer_queue.rows import Origin, Tag
from asyncrl.transfer_queue.storage import ShardStorage
from asyncrl.transfer_queue.table import ShardTable

AT = Origin("agent-0", 12.5, 3, 2)
Seen = dict[str, tuple[Tag, dict[str, list[Any]]]]


def opened(folder: Path, file_bytes: int = 1 << 20, resume: int | None = None) -> tuple[ShardStorage, list[Damage]]:
    """A shard's storage as it is after a start on this folder."""
    storage = ShardStorage(ShardTable(0, "life"), Journal(DiskFolder(str(folder)), file_bytes))
    return storage, storage.replay(resume)


def seen(storage: ShardStorage, partition: str = "train") -> Seen:
    """All rows with all their values."""
    part = storage.table.partitions.get(partition)
    if part is None:
        return {}
    return {
        key: (row.tag, {name: storage.table.get([key], partition, [name])[name].to_list() for name in sorted(row.cells)})
        for key, row in part.rows.items()
    }


def put(storage: ShardStorage, key: str, values: list[int], overwrite: bool = False, **tag: Any) -> None:
    storage.put([key], "train", {"x": Column.jagged("int64", [values])}, {key: tag}, AT, overwrite=overwrite)


def test_everything_that_was_accepted_comes_back_with_its_origin(tmp_path: Path) -> None:
    storage, _ = opened(tmp_path)
    fields = {
        "jagged": Column.jagged("float32", [[1.5, 2.5], []]),
        "deep": Column.jagged("int32", [np.zeros((0, 2, 3), np.int32), np.ones((2, 2, 3), np.int32)]),
        "dense": Column.dense(np.arange(8, dtype=np.uint16).reshape(2, 4), "bfloat16"),
        "flag": Column.dense(np.array([True, False])),
        "text": Column.strings(["", "ü"]),
        "raw": Column.blobs([b"\0", b""]),
        "thing": Column.objects([{"a": [1, None]}, []]),
    }
    storage.put(["a", "b"], "train", fields, {"a": {"n": 1}}, AT)
    storage.set_tags({"b": {"done": True}}, "train", Origin("x", 1.0))
    storage.put(["c"], "val", {"x": Column.dense(np.zeros((1, 0)))}, {}, AT)
    storage.put(["gone"], "train", {}, {"gone": {"n": 9}}, AT)
    storage.clear(["gone", "never"], "train")
    again, damages = opened(tmp_path)
    assert damages == []
    assert seen(again) == seen(storage)
    assert seen(again, "val") == seen(storage, "val")
    assert again.table.event == storage.table.event == 5
    for name, column in fields.items():
        assert again.table.get(["a", "b"], "train", [name])[name].layout == column.layout
    segment, index = again.table.partitions["train"].rows["b"].cells["deep"]
    assert segment.origin(index) == AT


Operation = tuple[str, str, list[int], int]
OPERATIONS: st.SearchStrategy[list[Operation]] = st.lists(
    st.tuples(
        st.sampled_from(["put", "put", "put", "tag", "clear", "compact", "restart"]),
        st.sampled_from("abcdef"),
        st.lists(st.integers(0, 99), max_size=5),
        st.integers(0, 3),
    ),
    min_size=1,
    max_size=40,
)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(operations=OPERATIONS)
def test_any_history_with_restarts_and_compaction_leaves_what_a_dict_would_hold(operations: list[Operation], tmp_path_factory: Any) -> None:
    folder = tmp_path_factory.mktemp("journal")
    storage, _ = opened(folder, file_bytes=400)
    model: Seen = {}
    for kind, key, values, number in operations:
        if kind == "put":
            put(storage, key, values, overwrite=True, n=number)
            model[key] = ({"n": number}, {"x": [values]})
        elif kind == "tag" and key in model:
            storage.set_tags({key: {"n": number}}, "train", AT)
            model[key] = ({"n": number}, model[key][1])
        elif kind == "clear":
            storage.clear([key], "train")
            model.pop(key, None)
        elif kind == "compact" and storage.journal is not None and (oldest := storage.journal.oldest()) is not None:
            while not storage.move(oldest):
                continue
        elif kind == "restart":
            storage, damages = opened(folder, file_bytes=400)
            assert damages == []
        assert seen(storage) == model
    again, _ = opened(folder)
    assert seen(again) == model


def histories(folder: Path) -> tuple[bytes, list[tuple[int, Seen]]]:
    """The one file of a small history, and after which byte of it each state holds."""
    storage, _ = opened(folder)
    states: list[tuple[int, Seen]] = [(0, {})]
    assert storage.journal is not None
    for number in range(6):
        put(storage, f"r{number}", list(range(number * 40)), n=number)
        states.append((storage.journal.size, seen(storage)))
    storage.clear(["r1"], "train")
    states.append((storage.journal.size, seen(storage)))
    [name] = DiskFolder(str(folder)).names()
    return (folder / name).read_bytes(), states


def test_a_file_cut_at_any_byte_gives_the_state_of_its_last_whole_record(tmp_path: Path) -> None:
    data, states = histories(tmp_path / "whole")
    cuts = sorted(random.Random(5).sample(range(len(data)), 40)) + [size for size, _ in states]
    for number, cut in enumerate(cuts):
        folder = tmp_path / f"cut{number}"
        folder.mkdir()
        (folder / "00000001.atq").write_bytes(data[:cut])
        storage, damages = opened(folder)
        size, state = max((entry for entry in states if entry[0] <= cut), key=lambda entry: entry[0])
        assert seen(storage) == state
        assert [(damage.offset, damage.size, damage.torn) for damage in damages] == ([(size, cut - size, True)] if cut > size else [])
        put(storage, "later", [7])
        again, told_again = opened(folder)
        assert told_again == []
        assert seen(again) == seen(storage)


def test_a_flipped_bit_costs_at_most_one_record_and_the_file_is_left_as_it_is(tmp_path: Path) -> None:
    data, states = histories(tmp_path / "whole")
    _, final = states[-1]
    for number, place in enumerate(random.Random(6).sample(range(len(data)), 40)):
        folder = tmp_path / f"flip{number}"
        folder.mkdir()
        flipped = bytearray(data)
        flipped[place] ^= 1 << (place % 8)
        (folder / "00000001.atq").write_bytes(flipped)
        storage, damages = opened(folder)
        hit = next(index for index, (size, _) in enumerate(states[1:]) if place < size)
        in_frame = place < states[hit][0] + records.FRAME_SIZE
        assert [damage.offset for damage in damages] == ([] if in_frame else [states[hit][0]])
        # The last record is the clear of r1: without it r1 is back.
        lost = "" if in_frame else f"r{hit}"
        found = seen(storage)
        if lost == "r6":
            found.pop("r1")
        assert found == {key: row for key, row in final.items() if key != lost}
        assert opened(folder)[1] == damages
        assert (folder / "00000001.atq").read_bytes() == flipped


def test_nothing_is_taken_for_a_record_in_random_bytes() -> None:
    noise = random.Random(7).randbytes(20_000) + records.MAGIC + random.Random(8).randbytes(2000)
    assert all(isinstance(found, Damage) for found in records.read("f", memoryview(noise)))


class FullDisk(DiskFolder):
    """A disk that takes ``left`` more bytes."""

    left = 1 << 30

    def write(self, descriptor: int, buffers: Any) -> int:
        data = b"".join(bytes(buffer) for buffer in buffers)
        if len(data) > self.left:
            super().write(descriptor, [data[: self.left]])
            raise OSError(28, "No space left on device")
        self.left -= len(data)
        return super().write(descriptor, [data])


def test_a_full_disk_refuses_the_put_whole_by_name_and_later_ones_go_on(tmp_path: Path) -> None:
    folder = FullDisk(str(tmp_path))
    storage = ShardStorage(ShardTable(0, "life"), Journal(folder))
    storage.replay()
    put(storage, "a", [1])
    folder.left = 100
    with pytest.raises(QueueStorageError, match=r"00000001.atq: No space left on device"):
        put(storage, "b", list(range(1000)))
    with pytest.raises(UnknownRow):
        storage.table.get(["b"], "train", ["x"])
    folder.left = 1 << 30
    put(storage, "c", [3])
    again, damages = opened(tmp_path)
    assert damages == []
    assert seen(again) == seen(storage)


def test_a_disk_without_room_for_another_file_refuses_the_put_by_name_and_later_ones_go_on(tmp_path: Path) -> None:
    class NoMoreFiles(DiskFolder):
        full = False

        def create(self, name: str) -> int:
            if self.full:
                raise OSError(28, "No space left on device")
            return super().create(name)

    folder = NoMoreFiles(str(tmp_path))
    storage = ShardStorage(ShardTable(0, "life"), Journal(folder, 200))
    storage.replay()
    put(storage, "a", list(range(100)))
    folder.full = True
    with pytest.raises(QueueStorageError, match=r"00000001.atq: No space left on device"):
        put(storage, "b", [1])
    folder.full = False
    put(storage, "c", [3])
    again, damages = opened(tmp_path)
    assert (sorted(seen(again)), damages) == (["a", "c"], [])


def test_nothing_more_is_written_behind_a_record_that_cannot_be_taken_back(tmp_path: Path) -> None:
    class Stubborn(FullDisk):
        def cut(self, descriptor: int, size: int) -> None:
            raise OSError(5, "Input/output error")

    folder = Stubborn(str(tmp_path))
    storage = ShardStorage(ShardTable(0, "life"), Journal(folder))
    storage.replay()
    put(storage, "a", [1])
    folder.left = 100
    with pytest.raises(QueueStorageError):
        put(storage, "b", list(range(1000)))
    folder.left = 1 << 30
    put(storage, "c", [3])
    again, damages = opened(tmp_path)
    assert [damage.torn for damage in damages] == [True]
    assert seen(again) == seen(storage)


class SlowDisk(DiskFolder):
    """Says what was handed to the disk: bytes of each file that is open or was, and whether all names were."""

    def __init__(self, path: str) -> None:
        super().__init__(path)
        self.named: list[str] = []
        self.on_disk: dict[str, int] = {}
        self._names: dict[int, str] = {}

    def create(self, name: str) -> int:
        descriptor = super().create(name)
        self._names[descriptor] = name
        return descriptor

    def sync(self, descriptor: int) -> None:
        super().sync(descriptor)
        self.sync_file(self._names[descriptor])

    def sync_file(self, name: str) -> None:
        self.on_disk[name] = len(self.read(name))

    def sync_folder(self) -> None:
        self.named = self.names()


def test_a_put_that_begins_another_file_does_not_wait_for_the_disk_which_has_all_of_it_after_a_sync(tmp_path: Path) -> None:
    folder = SlowDisk(str(tmp_path))
    journal = Journal(folder, 200)
    storage = ShardStorage(ShardTable(0, "life"), journal)
    storage.replay()
    folder.on_disk = {}
    for number in range(3):
        put(storage, f"r{number}", list(range(100)))
    work = journal.unsynced()
    put(storage, "later", list(range(100)))
    assert (folder.on_disk, journal.synced, len(journal.files)) == ({}, 0, 4)
    assert folder.named == ["00000001.atq"]
    journal.sync(work)
    names = [file.name for file in journal.files]
    assert folder.on_disk == {file.name: file.size for file in journal.files[:3]}
    assert folder.named == names
    assert journal.synced == sum(folder.on_disk.values()) < journal.written
    journal.sync(journal.unsynced())
    assert folder.on_disk == {file.name: file.size for file in journal.files}
    assert journal.synced == journal.written
    journal.close()


def test_what_a_start_reads_the_disk_has(tmp_path: Path) -> None:
    storage, _ = opened(tmp_path, file_bytes=200)
    for number in range(3):
        put(storage, f"r{number}", list(range(100)))
    folder = SlowDisk(str(tmp_path))
    journal = Journal(folder)
    assert ShardStorage(ShardTable(0, "next"), journal).replay() == []
    assert folder.on_disk == {file.name: file.size for file in journal.files[:-1]}
    assert folder.named == [file.name for file in journal.files]


def test_rows_cleared_for_a_step_come_back_when_the_run_resumes_from_before_it(tmp_path: Path) -> None:
    storage, _ = opened(tmp_path)
    for step in (1, 2, 3):
        put(storage, f"s{step}", [step])
        storage.clear([f"s{step}"], "train", retain=step)
    again, _ = opened(tmp_path)
    assert seen(again) == {}
    resumed, _ = opened(tmp_path, resume=1)
    assert sorted(seen(resumed)) == ["s2", "s3"]


def test_compaction_waits_for_the_checkpoint_that_makes_a_clear_final(tmp_path: Path) -> None:
    storage, _ = opened(tmp_path, file_bytes=200)
    assert storage.journal is not None
    for step in (1, 2, 3, 4):
        put(storage, f"s{step}", list(range(40)))
        storage.clear([f"s{step}"], "train", retain=step)
    assert storage.journal.oldest() is None
    storage.journal.committed(2)
    dropped = 0
    while (oldest := storage.journal.oldest()) is not None:
        assert storage.move(oldest)
        dropped += 1
    assert dropped >= 2
    resumed, _ = opened(tmp_path, resume=2)
    assert sorted(seen(resumed)) == ["s3", "s4"]


def test_a_journal_that_is_mostly_dead_shrinks_to_what_lives(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compaction, "SPARE_BYTES", 1000)
    storage, _ = opened(tmp_path, file_bytes=4000)
    assert storage.journal is not None
    put(storage, "kept", list(range(50)))
    for number in range(100):
        put(storage, "changing", [number] * 50, overwrite=True)
        while (file := storage.wasteful()) is not None:
            storage.move(file)
    assert storage.journal.size < 12_000
    assert storage.journal.size == sum(path.stat().st_size for path in tmp_path.iterdir())
    again, _ = opened(tmp_path)
    assert seen(again) == {"kept": ({}, {"x": [list(range(50))]}), "changing": ({}, {"x": [[99] * 50]})}


def test_an_idempotent_change_is_remembered_over_a_restart(tmp_path: Path) -> None:
    storage, _ = opened(tmp_path)
    storage.put(["a"], "train", {}, {"a": {}}, AT, operation=("agent-0", 2, 77))
    again, _ = opened(tmp_path)
    assert again.done(("agent-0", 2, 77))
    assert not again.done(("agent-0", 2, 78))
    assert not again.done(None)


def test_memory_of_dead_rows_is_free_at_once_and_fragmentation_is_bounded() -> None:
    storage = ShardStorage(ShardTable(0, "life"), None)
    rows = [[number] * 1000 for number in range(64)]
    keys = [f"k{number}" for number in range(64)]
    for batch in range(8):
        names = [f"{key}_{batch}" for key in keys]
        storage.put(names, "train", {"x": Column.jagged("int64", rows)}, {}, AT)
    whole = storage.table.stored_bytes
    assert whole == 8 * 64 * 8000
    for key, batch in itertools.product(keys[1:], range(8)):
        storage.clear([f"{key}_{batch}"], "train")
    stats = storage.table.stats()
    assert stats.live_bytes == 8 * 8000
    assert stats.stored_bytes <= 2 * stats.live_bytes + 8 * 65536
    assert storage.table.get([f"k0_{batch}" for batch in range(8)], "train", ["x"])["x"].to_list() == [[0] * 1000] * 8
