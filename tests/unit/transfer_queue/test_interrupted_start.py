"""A start that is killed at any write, and then again, leaves the next one all that there is to take over."""

import itertools
from collections.abc import Sequence
from typing import Any

import pytest

from asyncrl.errors import QueueStorageError
from asyncrl.runtime.simulated_files import MemoryFolder
from asyncrl.tensors.wire import Column
from asyncrl.transfer_queue import snapshot
from asyncrl.transfer_queue.journal import Journal
from asyncrl.transfer_queue.rows import Origin
from asyncrl.transfer_queue.storage import ShardStorage
from asyncrl.transfer_queue.table import ShardTable
from tests.unit.transfer_queue.dying import PATH, Killed, opened
from tests.unit.transfer_queue.rows import Rows
from tests.unit.transfer_queue.test_journal import AT, Seen, seen

Files = dict[str, bytearray]


def copy(files: Files) -> Files:
    return {name: bytearray(data) for name, data in files.items()}


@pytest.fixture(scope="module")
def taken() -> tuple[MemoryFolder, Seen]:
    """A snapshot of several records, and its rows."""
    rows = Rows(0, "life before")
    for number in range(12):
        fields = {f"field{number % 4}": Column.jagged("int64", [[number] * 90])}
        rows.put([f"r{number}"], "train", fields, {f"r{number}": {"n": number}})
    folder = MemoryFolder("/snapshot", {}, lambda: False)
    snapshot.write(folder, 0, "life before", 12, rows.storage.rows_now())
    return folder, seen(rows.storage)


def restored(folder: MemoryFolder, files: Files, left: int = 1 << 30) -> ShardStorage:
    """As a shard starts: the snapshot is for where the journal brings nothing."""
    storage = opened(files, left=left)
    if not storage.table.partitions:
        storage.restore(snapshot.load(folder)[1])
    return storage


def test_a_restore_is_there_whole_or_not_at_all(taken: tuple[MemoryFolder, Seen]) -> None:
    folder, rows = taken
    for left in itertools.count():
        files: Files = {}
        try:
            restored(folder, files, left)
        except Killed:
            assert seen(opened(copy(files))) in ({}, rows)
            assert seen(restored(folder, files)) == rows
            assert seen(opened(files)) == rows
        else:
            break
    assert sum(name.endswith(".atq") for name in files) > 3
    assert left > 12


def test_a_restore_that_is_killed_again_and_again_is_whole_in_the_end(taken: tuple[MemoryFolder, Seen]) -> None:
    folder, rows = taken
    for first, second in itertools.product(range(1, 20, 3), repeat=2):
        files: Files = {}
        for left in (first, second):
            try:
                restored(folder, files, left)
            except Killed:
                continue
        storage = restored(folder, files)
        assert seen(storage) == rows
        storage.put(["later"], "train", {}, {"later": {"n": 1}}, AT)
        assert seen(opened(files)) == seen(storage)


class FullFolder(MemoryFolder):
    """A disk that takes ``left`` more bytes."""

    left = 2500

    def write(self, descriptor: int, buffers: Sequence[Any]) -> int:
        self.left -= sum(len(bytes(buffer)) for buffer in buffers)
        if self.left < 0:
            raise OSError(28, "No space left on device")
        return super().write(descriptor, buffers)


def test_a_restore_for_which_the_disk_has_no_room_leaves_nothing_behind(taken: tuple[MemoryFolder, Seen]) -> None:
    folder, _ = taken
    files: Files = {}
    storage = ShardStorage(ShardTable(0, "life"), Journal(FullFolder(PATH, files, lambda: False), 2000))
    storage.replay()
    with pytest.raises(QueueStorageError, match="/journal: rows cannot be written down anew: No space left on device"):
        storage.restore(snapshot.load(folder)[1])
    assert list(files) == [f"{PATH}/00000001.atq"]
    assert seen(opened(files)) == {}


def history() -> Files:
    """A run of which step 3 and later are to be undone."""
    files: Files = {}
    storage = opened(files)
    for key in ("a", "b", "c"):
        storage.put([key], "train", {"x": Column.jagged("int64", [[1] * 90])}, {key: {"n": 1}}, AT)
    computed = Origin("rank0", 1.0, 3, 2, computed=True)
    storage.put(["a", "b"], "train", {"x": Column.jagged("int64", [[7], [7]])}, {}, computed, overwrite=True)
    storage.clear(["b", "c"], "train", retain=3)
    return files


def test_a_resume_that_is_killed_at_any_write_gives_the_same_rows_afterwards() -> None:
    before = history()
    given_back: Seen = {key: ({"n": 1}, {"x": [[1] * 90]}) for key in ("a", "b", "c")}
    assert seen(opened(copy(before), resume=2)) == given_back
    for left in itertools.count():
        files = copy(before)
        try:
            opened(files, 2, left)
        except Killed:
            assert seen(opened(copy(files), resume=2)) == given_back
            assert list(seen(opened(files))) in (["a"], ["a", "b", "c"])
        else:
            break
    assert left > 4
    assert seen(opened(files)) == given_back


def test_a_journal_knows_whether_a_start_in_this_attempt_came_to_its_end() -> None:
    files: Files = {}

    def journal() -> Journal:
        found = opened(files).journal
        assert found is not None
        return found

    assert not journal().start("a1", first=True)
    assert not journal().start("a1", first=False)
    journal().started("a1")
    journal().started("a1")
    assert journal().start("a1", first=False)
    assert not journal().start("a2", first=False)
    assert not journal().start("a1", first=False)
    journal().started("a2")
    # A first life has nothing before it, whatever has the same name.
    assert not journal().start("a2", first=True)
    assert not journal().start("a2", first=False)
