"""The table of one shard, by hand: puts, guards, gets, tags, clears, memory, watches."""

import weakref

import numpy as np
import pytest

from asyncrl.errors import Fenced, FieldExists, FieldMismatch, MissingField, UnknownRow
from asyncrl.tensors.wire import Column
from asyncrl.transfer_queue import watch
from asyncrl.transfer_queue.rows import Change, Guard, Snapshot
from tests.unit.transfer_queue.rows import Rows


def _table() -> Rows:
    return Rows(3, "life-1")


def _ints(*rows: list[int]) -> Column:
    return Column.jagged("int64", rows)


def test_rows_grow_fields_and_tags_over_several_puts() -> None:
    table = _table()
    table.put(["a", "b"], "train", {"x": _ints([1], [2, 3])}, {"a": {"n": 1}, "b": {"n": 2}})
    table.put(["b"], "train", {"y": _ints([9])}, {"b": {"done": True}})
    assert table.get(["b", "a"], "train", ["x"])["x"].to_list() == [[2, 3], [1]]
    assert table.get(["b"], "train", ["y", "x"])["y"].to_list() == [[9]]
    assert table.list_rows("train") == {"a": {"n": 1}, "b": {"n": 2, "done": True}}
    assert table.list_rows("train", {"n": 2, "done": True}) == {"b": {"n": 2, "done": True}}
    assert table.list_rows("train", {"absent": None}) == {}
    assert table.list_rows("val") == {}


def test_partitions_share_nothing() -> None:
    table = _table()
    table.put(["a"], "train", {"x": _ints([1])}, {})
    table.put(["a"], "val", {"x": Column.strings(["s"])}, {})
    table.clear(["a"], "train")
    assert table.get(["a"], "val", ["x"])["x"].to_list() == ["s"]
    with pytest.raises(UnknownRow):
        table.get(["a"], "train", ["x"])


def test_what_is_not_there_is_named() -> None:
    table = _table()
    table.put(["a"], "train", {"x": _ints([1])}, {})
    with pytest.raises(UnknownRow) as unknown:
        table.get(["a", "b"], "train", ["x"])
    assert (unknown.value.key, unknown.value.partition, unknown.value.shard) == ("b", "train", 3)
    with pytest.raises(MissingField) as missing:
        table.get(["a"], "train", ["x", "y"])
    assert (missing.value.key, missing.value.field, missing.value.known) == ("a", "y", ("x",))
    with pytest.raises(UnknownRow):
        table.set_tags({"a": {"n": 1}, "b": {}}, "train")
    assert table.list_rows("train") == {"a": {}}


def test_a_put_onto_a_value_is_refused_whole_unless_it_says_overwrite() -> None:
    table = _table()
    table.put(["b"], "train", {"x": _ints([1])}, {"b": {"n": 1}})
    with pytest.raises(FieldExists) as exists:
        table.put(["a", "b"], "train", {"y": _ints([5], [6]), "x": _ints([7], [8])}, {"a": {"n": 2}, "b": {"n": 2}})
    assert (exists.value.key, exists.value.field) == ("b", "x")
    assert table.list_rows("train") == {"b": {"n": 1}}
    with pytest.raises(MissingField):
        table.get(["b"], "train", ["y"])
    table.put(["a", "b"], "train", {"x": _ints([7], [8])}, {}, overwrite=True)
    assert table.get(["a", "b"], "train", ["x"])["x"].to_list() == [[7], [8]]


@pytest.mark.parametrize(
    "column", [Column.jagged("int32", [[1]]), Column.dense([1]), Column.jagged("int64", [[[1]]]), Column.strings(["1"])]
)
def test_a_put_of_another_dtype_or_layout_is_refused_whole(column: Column) -> None:
    table = _table()
    table.put(["a"], "train", {"x": _ints([1])}, {})
    with pytest.raises(FieldMismatch, match=r"'x' of shard 3 holds jagged int64 \[\*\]"):
        table.put(["b"], "train", {"y": _ints([1]), "x": column}, {"b": {"n": 1}}, overwrite=True)
    assert table.list_rows("train") == {"a": {}}
    table.clear(["a"], "train")
    table.put(["b"], "train", {"x": column}, {})
    assert table.get(["b"], "train", ["x"])["x"].layout == column.layout


def test_a_guard_is_checked_before_anything_is_applied() -> None:
    table = _table()
    table.put(["m"], "train", {}, {"m": {"lease": 1, "status": "running"}})
    table.put(["m_0"], "train", {"x": _ints([1])}, {"m": {"status": "finished"}}, guard=Guard("m", {"lease": 1, "status": "running"}))
    with pytest.raises(Fenced) as fenced:
        table.put(["m_0"], "train", {"x": _ints([2])}, {}, guard=Guard("m", {"lease": 1, "status": "running"}), overwrite=True)
    assert (fenced.value.key, fenced.value.seen) == ("m", "{'lease': 1, 'status': 'finished'}")
    for guard in (Guard("n", {}), Guard("m", {"absent": None}), Guard("m_0", {"lease": 1})):
        with pytest.raises(Fenced):
            table.put(["m_1"], "train", {"x": _ints([3])}, {}, guard=guard)
    assert table.get(["m_0"], "train", ["x"])["x"].to_list() == [[1]]
    assert list(table.list_rows("train")) == ["m", "m_0"]
    with pytest.raises(Fenced, match="no row"):
        table.put(["m"], "val", {}, {}, guard=Guard("m", {}))
    assert table.stats().partitions == {"train": 2}


def test_rows_and_the_tag_of_another_row_are_one_put() -> None:
    table = _table()
    watcher = table.watch("train")
    table.event(watcher)
    table.put(["m_0"], "train", {"x": _ints([1])}, {"m_0": {"n": 1}, "m": {"status": "finished"}})
    assert table.event(watcher) == Change(3, "life-1", 1, {"m_0": {"n": 1}, "m": {"status": "finished"}})


def test_lists_that_do_not_fit_change_nothing() -> None:
    table = _table()
    for keys in (["a"], ["a", "a"]):
        with pytest.raises(ValueError, match=r"rows for 1 keys|named twice"):
            table.put(keys, "train", {"x": _ints([1], [2])}, {})
    assert table.stats().partitions == {}


def test_no_rows_have_the_layout_of_their_field() -> None:
    table = _table()
    table.put(["a"], "train", {"x": Column.jagged("float32", [np.zeros((2, 3), np.float32)])}, {})
    found = table.get([], "train", ["x"])["x"]
    assert (found.rows, found.layout) == (0, ("float32", (3,), True))
    for partition, field in (("train", "y"), ("val", "x")):
        with pytest.raises(MissingField):
            table.get([], partition, [field])


def test_a_segment_goes_with_its_last_row() -> None:
    table = _table()
    memory = np.zeros(20_000, np.uint8)
    gone = weakref.ref(memory)
    table.put(["a", "b"], "train", {"x": Column("uint8", (), memory, np.array([0, 5_000, 20_000]), 2)}, {})
    del memory
    assert (table.stats().stored_bytes, table.stats().live_bytes, table.stats().segments) == (20_000, 20_000, 1)
    table.clear(["a", "absent"], "train")
    assert (table.stats().stored_bytes, table.stats().live_bytes, table.stats().segments) == (20_000, 15_000, 1)
    assert gone() is not None
    table.put(["b"], "train", {"x": Column.jagged("uint8", [[7]])}, {}, overwrite=True)
    assert (table.stats().stored_bytes, table.stats().live_bytes, table.stats().segments) == (1, 1, 1)
    assert gone() is None
    table.clear(["b"], "train")
    stats = table.stats()
    assert (stats.stored_bytes, stats.live_bytes, stats.segments, stats.partitions) == (0, 0, 0, {})


def test_a_watch_starts_with_all_rows_and_then_tells_the_last_state_of_each() -> None:
    table = _table()
    table.put(["a"], "train", {}, {"a": {"n": 1}})
    watcher = table.watch("train")
    assert table.put(["b"], "train", {}, {"b": {"n": 2}}) == [watcher]
    assert table.event(watcher) == Snapshot(3, "life-1", 0, {"a": {"n": 1}, "b": {"n": 2}})
    assert table.event(watcher) is None
    assert table.put(["b"], "train", {"x": _ints([1])}, {}) == []
    assert table.set_tags({"a": {"n": 5}}, "train") == [watcher]
    table.set_tags({"a": {"m": 6}}, "train")
    table.clear(["b"], "train")
    table.put(["c"], "val", {}, {})
    assert table.event(watcher) == Change(3, "life-1", 1, {"a": {"n": 5, "m": 6}, "b": None})
    table.put(["b"], "train", {}, {})
    assert table.event(watcher) == Change(3, "life-1", 2, {"b": {}})
    table.unwatch(watcher)
    assert table.put(["b"], "train", {}, {"b": {"n": 3}}) == []
    assert table.stats().watchers == 0


def test_a_filtered_watch_sees_rows_come_and_leave() -> None:
    table = _table()
    table.put(["a", "b"], "train", {}, {"a": {"s": "run"}, "b": {"s": "wait"}})
    watcher = table.watch("train", {"s": "run"})
    assert table.event(watcher) == Snapshot(3, "life-1", 0, {"a": {"s": "run"}})
    assert table.set_tags({"b": {"n": 1}}, "train") == []
    table.set_tags({"a": {"s": "done"}, "b": {"s": "run"}}, "train")
    assert table.event(watcher) == Change(3, "life-1", 1, {"a": None, "b": {"s": "run", "n": 1}})


def test_a_watcher_that_falls_too_far_behind_starts_over(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch, "OVERFLOW", 2)
    table = _table()
    watcher = table.watch("train")
    table.event(watcher)
    for key in ("a", "b", "c", "d"):
        table.put([key], "train", {}, {})
    assert table.event(watcher) == Snapshot(3, "life-1", 1, {"a": {}, "b": {}, "c": {}, "d": {}})
    assert table.event(watcher) is None


def test_told_tags_are_not_changed_afterwards() -> None:
    table = _table()
    watcher = table.watch("train")
    table.put(["a"], "train", {}, {"a": {"n": 1}})
    told = table.event(watcher)
    table.set_tags({"a": {"n": 2}}, "train")
    assert told is not None
    assert told.rows == {"a": {"n": 1}}
