"""Rows of which a part is damaged on disk: nobody gets an old value or a half row for the last one, and what is lost is named."""

from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from pathlib import Path

import numpy as np
import pytest

from asyncrl.errors import MissingField, ShardLost, UnknownRow
from asyncrl.runtime import ActorSystem
from asyncrl.runtime.files import DiskFolder
from asyncrl.tensors.wire import Column
from asyncrl.transfer_queue import snapshot
from asyncrl.transfer_queue.client import TransferQueue
from asyncrl.transfer_queue.rows import Origin
from asyncrl.transfer_queue.shard import QueueShard, ShardOptions
from asyncrl.transfer_queue.storage import ShardStorage
from tests.unit.transfer_queue.test_journal import AT, opened, put, seen


@asynccontextmanager
async def life(folder: Path) -> AsyncIterator[TransferQueue]:
    """One life of a shard with a journal."""
    async with ActorSystem.local() as system:
        options = ShardOptions(journal="interval", journal_folder=str(folder))
        yield TransferQueue([await system.spawn(QueueShard, 0, options, name="shard-0")])


def damage(folder: Path, needle: bytes, offset: int = 0) -> None:
    """Flips a bit of the first place in the journal that holds these bytes."""
    for path in sorted(folder.rglob("*.atq")):
        data = bytearray(path.read_bytes())
        place = data.find(needle)
        if place >= 0:
            data[place + offset] ^= 1
            path.write_bytes(data)
            return
    raise AssertionError(f"{needle!r} is nowhere")


def values(number: int) -> bytes:
    return np.full(100, number, np.int64).tobytes()


def column(number: int) -> Column:
    return Column.jagged("int64", [[number] * 100])


async def lost(queue: TransferQueue, key: str, fields: Iterable[str]) -> tuple[str, ...]:
    with pytest.raises(ShardLost) as error:
        await queue.kv_batch_get([key], "train", list(fields))
    return error.value.keys


async def test_a_lost_field_is_named_until_the_row_is_cleared_or_put_again(tmp_path: Path) -> None:
    async with life(tmp_path) as queue:
        for key in ("a_0", "b_0", "c_0"):
            await queue.kv_put(key, "train", {"x": column(7 if key == "a_0" else 5)}, {"status": "success"})
        await queue.kv_set_tags(["a_0"], "train", [{"seen": True}])
        await queue.kv_put("a_0", "train", {"y": Column.dense([8])})
    damage(tmp_path, values(7))
    async with life(tmp_path) as queue:
        # Tags are merged into rows that are there; they make none.
        assert dict(await queue.kv_list("train")) == {"b_0": {"status": "success"}, "c_0": {"status": "success"}, "a_0": {}}
        assert (await queue.kv_batch_get(["a_0"], "train", ["y"]))["y"].to_list() == [8]
        assert await lost(queue, "a_0", ["x"]) == ("a_0",)
        with pytest.raises(MissingField):
            await queue.kv_batch_get(["a_0"], "train", ["never"])
        with pytest.raises(MissingField):
            await queue.kv_batch_get(["b_0"], "train", ["y"])
        with pytest.raises(UnknownRow):
            await queue.kv_batch_get(["d_0"], "train", ["x"])
        assert "rows a_0 of partition 'train'" in (await queue.stats())[0].damaged[0]
        await queue.kv_put("a_0", "train", {"x": column(9)})
        assert (await queue.kv_batch_get(["a_0"], "train", ["x"]))["x"].to_list() == [[9] * 100]
    async with life(tmp_path) as queue:
        assert (await queue.kv_batch_get(["a_0"], "train", ["x", "y"]))["x"].to_list() == [[9] * 100]
        await queue.kv_clear(["a_0"], "train")
        with pytest.raises(UnknownRow):
            await queue.kv_batch_get(["a_0"], "train", ["x"])
    async with life(tmp_path) as queue:
        with pytest.raises(UnknownRow):
            await queue.kv_batch_get(["a_0"], "train", ["x"])


async def test_a_row_that_is_lost_as_a_whole_is_told_as_lost_to_all_who_ask_for_it(tmp_path: Path) -> None:
    async with life(tmp_path) as queue:
        await queue.kv_put("a_0", "train", {"x": column(7)}, {"status": "success"})
    damage(tmp_path, values(7))
    async with life(tmp_path) as queue:
        assert await lost(queue, "a_0", ["x"]) == ("a_0",)
        with pytest.raises(ShardLost):
            await queue.kv_set_tags(["a_0"], "train", [{"n": 1}])
        with pytest.raises(ShardLost):
            await queue.kv_origins("a_0", "train")
        await queue.kv_clear(["a_0"], "train")
        with pytest.raises(UnknownRow):
            await queue.kv_batch_get(["a_0"], "train", ["x"])


async def test_where_the_names_are_lost_too_nothing_that_is_missing_is_said_to_have_never_been_there(tmp_path: Path) -> None:
    async with life(tmp_path) as queue:
        await queue.kv_put("a_0", "train", {"x": column(7)})
        await queue.kv_put("b_0", "train", {"x": column(5)})
    damage(tmp_path, b"a_0")
    async with life(tmp_path) as queue:
        assert await lost(queue, "a_0", ["x"]) == ()
        assert await lost(queue, "b_0", ["y"]) == ()
        assert (await queue.kv_batch_get([], "train", ["x"]))["x"].rows == 0
        with pytest.raises(MissingField):
            await queue.kv_batch_get([], "train", ["y"])


def test_what_a_damaged_put_has_overwritten_does_not_pass_for_the_last_value(tmp_path: Path) -> None:
    storage, _ = opened(tmp_path)
    put(storage, "a", [1] * 100, n=1)
    put(storage, "a", [7] * 100, overwrite=True, n=2)
    damage(tmp_path, values(7))
    again, damages = opened(tmp_path)
    assert [found.keys for found in damages] == [["a"]]
    assert seen(again) == {"a": ({"n": 1}, {})}
    assert again.losses.hold("train", "a", "x")


def test_what_a_resume_would_undo_is_no_loss(tmp_path: Path) -> None:
    storage, _ = opened(tmp_path)
    put(storage, "a", [1] * 100)
    computed = Origin("rank0", 1.0, 3, 2, computed=True)
    storage.put(["a"], "train", {"x": column(7)}, {}, computed, overwrite=True)
    damage(tmp_path, values(7))
    resumed, _ = opened(tmp_path, resume=2)
    assert seen(resumed) == {"a": ({}, {"x": [[1] * 100]})}
    assert not resumed.losses


def test_a_loss_is_still_known_when_a_resume_has_written_the_row_down_anew(tmp_path: Path) -> None:
    storage, _ = opened(tmp_path)
    put(storage, "a", [7] * 100)
    storage.put(["a"], "train", {"y": column(5)}, {}, AT)
    storage.put(["a"], "train", {"z": column(6)}, {}, Origin("rank0", 1.0, 3, 2, computed=True))
    damage(tmp_path, values(7))
    opened(tmp_path, resume=2)
    again, _ = opened(tmp_path)
    assert seen(again) == {"a": ({}, {"y": [[5] * 100]})}
    assert again.losses.hold("train", "a", "x")


def moved(folder: Path) -> tuple[ShardStorage, bytes]:
    """A journal whose first file has been written anew and is still there; its bytes."""
    storage, _ = opened(folder, file_bytes=500)
    put(storage, "a", [7] * 100)
    put(storage, "b", [5] * 100)
    assert storage.journal is not None
    oldest = storage.journal.oldest()
    assert oldest is not None
    data = (folder / oldest.name).read_bytes()
    while not storage.move(oldest):
        continue
    return storage, data


def test_a_damaged_copy_costs_nothing_while_the_original_is_there(tmp_path: Path) -> None:
    storage, first = moved(tmp_path)
    damage(tmp_path, values(7))
    gone, _ = opened(tmp_path)
    assert gone.losses.hold("train", "a", "x")
    (tmp_path / "00000001.atq").write_bytes(first)
    again, damages = opened(tmp_path)
    assert len(damages) == 1
    assert seen(again) == seen(storage)
    assert not again.losses


def test_a_lost_clear_does_not_leave_a_field_in_two_layouts(tmp_path: Path) -> None:
    storage, _ = opened(tmp_path)
    put(storage, "a", [1] * 50)
    storage.clear(["a"], "train")
    storage.put(["b"], "train", {"x": Column.dense(np.ones((1, 2), np.float32))}, {}, AT)
    path = tmp_path / "00000001.atq"
    data = path.read_bytes()
    place = data.find(b"clear")
    path.write_bytes(data[:place] + b"Clear" + data[place + 5 :])
    again, damages = opened(tmp_path)
    assert [found.reason.split(",")[0] for found in damages] == ["the checksum of a header differs", "field 'x' becomes dense float32 [2]"]
    assert seen(again) == {"a": ({}, {}), "b": ({}, {"x": [[1.0, 1.0]]})}
    assert again.losses.hold("train", "a", "x")
    assert again.journal is not None
    oldest = again.journal.oldest()
    assert oldest is not None
    while not again.move(oldest):
        continue
    assert snapshot.write(DiskFolder(str(tmp_path / "snapshot")), 0, "life", 0, again.rows_now()).rows == 2
    assert seen(opened(tmp_path)[0]) == seen(again)


def test_a_put_record_names_its_rows_whatever_became_of_its_values(tmp_path: Path) -> None:
    storage, _ = opened(tmp_path)
    storage.put(["a", "b"], "val", {"x": Column.dense([7, 7])}, {}, AT)
    damage(tmp_path, np.full(2, 7, np.int64).tobytes(), 15)
    again, damages = opened(tmp_path)
    assert [(found.partition, found.keys) for found in damages] == [("val", ["a", "b"])]
    assert all(again.losses.hold("val", key, "x") for key in ("a", "b"))
