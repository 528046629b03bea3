"""Compaction comes to an end whatever the journal is full of, and loses nothing between its steps."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

from asyncrl.runtime.files import DiskFolder
from asyncrl.tensors.wire import Column
from asyncrl.transfer_queue import compaction
from asyncrl.transfer_queue.journal import Journal
from asyncrl.transfer_queue.rows import Origin, Tag
from asyncrl.transfer_queue.storage import ShardStorage
from asyncrl.transfer_queue.table import ShardTable

AT = Origin("agent-0", 12.5, 3, 2)
FILE = 100_000


def opened(folder: Path, file_bytes: int = FILE) -> ShardStorage:
    storage = ShardStorage(ShardTable(0, "life"), Journal(DiskFolder(str(folder)), file_bytes))
    assert storage.replay() == []
    return storage


def compacted(storage: ShardStorage, most: int = 3000) -> int:
    """Bytes that were written until there was nothing more to compact."""
    assert storage.journal is not None
    before = storage.journal.written
    for _ in range(most):
        file = storage.wasteful()
        if file is None:
            return storage.journal.written - before
        storage.move(file)
    raise AssertionError(f"not at its end after {most} steps")


def tagged(storage: ShardStorage, rows: int, first: int = 0) -> list[str]:
    """Rows with a kilobyte of tag each, and no fields."""
    keys = [f"u{number}_0" for number in range(first, first + rows)]
    for start in range(0, rows, 100):
        part = keys[start : start + 100]
        storage.put(part, "train", {}, {key: {"text": "x" * 950} for key in part}, AT)
    return keys


def counted(storage: ShardStorage, rows: int) -> list[str]:
    """Rows of many tiny values: names, offsets and origins take more than the values."""
    keys = [f"c{number}_0" for number in range(rows)]
    fields = {f"field_{number}": Column.jagged("int8", [[1]] * 10) for number in range(12)}
    for start in range(0, rows, 10):
        storage.put(keys[start : start + 10], "train", fields, {}, AT)
    return keys


@pytest.mark.parametrize(("filled", "rows"), [(tagged, 600), (counted, 2000)])
def test_a_journal_of_little_but_tags_and_offsets_is_written_anew_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, filled: Callable[[ShardStorage, int], list[str]], rows: int
) -> None:
    monkeypatch.setattr(compaction, "SPARE_BYTES", 50_000)
    storage = opened(tmp_path)
    assert storage.journal is not None
    keys = filled(storage, rows)
    whole = storage.journal.size
    assert whole > 3 * FILE
    # Nothing is dead. What was open at the beginning may be written twice.
    assert compacted(storage) <= whole + 3 * FILE
    assert compacted(storage) == 0
    storage.set_tags({keys[0]: {"n": 1}}, "train", AT)
    assert compacted(storage) == 0
    assert sorted(row for part in opened(tmp_path).table.partitions.values() for row in part.rows) == sorted(keys)


def test_after_a_pass_in_vain_a_journal_still_shrinks_to_what_lives(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compaction, "SPARE_BYTES", 50_000)
    storage = opened(tmp_path)
    assert storage.journal is not None
    keys = tagged(storage, 600)
    compacted(storage)
    alive = storage.journal.size
    sizes = []
    for turn in range(30):
        storage.set_tags({key: {"turn": turn} for key in keys[:200]}, "train", AT)
        for key in keys[:100]:
            storage.set_tags({key: {"text": f"{turn}" * 900}}, "train", AT)
        compacted(storage)
        sizes.append(storage.journal.size)
    assert max(sizes) <= 2 * alive + 4 * FILE
    storage.clear(keys[1:], "train")
    compacted(storage)
    assert storage.journal.size <= 3 * FILE
    assert list(opened(tmp_path).table.partitions["train"].rows) == keys[:1]


def test_one_row_that_is_left_of_a_pass_does_not_hide_the_dead_of_later_ones(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compaction, "SPARE_BYTES", 50_000)
    storage = opened(tmp_path)
    assert storage.journal is not None
    keys = tagged(storage, 600)
    while (file := storage.wasteful()) is not None and storage.journal.files[0].number < 4:
        storage.move(file)
    storage.clear(keys[1:], "train")
    compacted(storage)
    sizes = []
    for turn in range(12):
        more = tagged(storage, 200, first=1000 + 200 * turn)
        storage.clear(more, "train")
        compacted(storage)
        sizes.append(storage.journal.size)
    assert max(sizes) < 12 * FILE


OPERATIONS = st.lists(
    st.tuples(st.sampled_from(["put", "put", "tag", "clear", "step", "step", "restart"]), st.integers(0, 39), st.integers(0, 2)),
    max_size=50,
)


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(OPERATIONS)
def test_changes_between_the_steps_of_a_compaction_are_kept(
    tmp_path_factory: pytest.TempPathFactory, operations: list[tuple[str, int, int]]
) -> None:
    folder = tmp_path_factory.mktemp("journal")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(compaction, "SPARE_BYTES", 0)
        patch.setattr(compaction, "MOVED_ROWS", 2)
        storage, model = opened(folder, file_bytes=300), dict[tuple[str, str], tuple[Tag, list[int] | None]]()
        for kind, number, draw in operations:
            partition, key = ("train", "val")[draw % 2], f"u{number % 8}"
            tag, values = model.get((partition, key), ({}, None))
            if kind == "put":
                column = Column.jagged("int64", [[number] * draw])
                storage.put([key], partition, {"x": column}, {key: {"n": number}}, AT, overwrite=True)
                model[partition, key] = ({**tag, "n": number}, [number] * draw)
            elif kind == "tag" and (partition, key) in model:
                storage.set_tags({key: {"t": number}}, partition, AT)
                model[partition, key] = ({**tag, "t": number}, values)
            elif kind == "clear":
                storage.clear([key], partition)
                model.pop((partition, key), None)
            elif kind == "step" and (file := storage.wasteful()) is not None:
                storage.move(file)
            elif kind == "restart":
                storage = opened(folder, file_bytes=300)
            assert rows_of(storage) == model
        compacted(storage)
        assert rows_of(storage) == model
        assert rows_of(opened(folder)) == model


def rows_of(storage: ShardStorage) -> dict[tuple[str, str], tuple[Tag, list[int] | None]]:
    return {
        (partition, key): (row.tag, storage.table.get([key], partition, ["x"])["x"].to_list()[0] if row.cells else None)
        for partition, part in storage.table.partitions.items()
        for key, row in part.rows.items()
    }


def test_rows_of_a_file_are_looked_through_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    storage = opened(tmp_path)
    assert storage.journal is not None
    keys = tagged(storage, 600)
    looked: list[int] = []

    def lies_in(row: Any, number: int) -> bool:
        looked.append(number)
        return true_lies_in(row, number)

    true_lies_in = compaction.lies_in
    monkeypatch.setattr(compaction, "lies_in", lies_in)
    monkeypatch.setattr(compaction, "MOVED_ROWS", 10)
    file = storage.journal.oldest()
    assert file is not None
    moved = 0
    while not storage.move(file):
        moved += 1
    assert moved >= 9
    # Once each, and those that lie there before and after they are moved.
    assert len(looked) <= len(keys) + 2 * 10 * moved
