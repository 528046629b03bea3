"""The table against a dict: whatever is done to it, nothing is lost, nothing resurrected, watchers see the last state."""

from typing import Any

import pytest
from hypothesis import settings, strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from asyncrl.errors import Fenced, FieldExists, FieldMismatch, MissingField, TransferError, UnknownRow
from asyncrl.tensors.wire import Column
from asyncrl.transfer_queue.row_tags import RowTags
from asyncrl.transfer_queue.rows import Guard, Snapshot, Tag
from asyncrl.transfer_queue.watch import Watcher
from tests.unit.transfer_queue.rows import Rows

KEYS = st.lists(st.sampled_from(["a", "b", "c", "d"]), max_size=4, unique=True)
PARTITIONS = st.sampled_from(["train", "val"])
FIELDS = st.sampled_from(["x", "y"])
TAGS = st.dictionaries(st.sampled_from(["s", "n"]), st.integers(0, 2), max_size=2)
ROWS = st.lists(st.integers(0, 9), max_size=3)


class TableAgainstDict(RuleBasedStateMachine):
    """``rows`` is the model: (partition, key) -> (tag, fields with their dtype and value)."""

    def __init__(self) -> None:
        super().__init__()
        self.table = Rows(0, "life")
        self.rows: dict[tuple[str, str], tuple[Tag, dict[str, tuple[str, list[int]]]]] = {}
        self.watches: list[tuple[Watcher, dict[str, Tag]]] = []

    @rule(keys=KEYS, partition=PARTITIONS, field=FIELDS, dtype=st.sampled_from(["int64", "int64", "uint8"]), data=st.data())
    def put(self, keys: list[str], partition: str, field: str, dtype: str, data: st.DataObject) -> None:
        values = [data.draw(ROWS) for _ in keys]
        tags = {key: data.draw(TAGS) for key in keys}
        overwrite = data.draw(st.booleans())
        guard = Guard(data.draw(st.sampled_from(["a", "b"])), data.draw(TAGS)) if data.draw(st.booleans()) else None
        expected = self._refusal(keys, partition, field, dtype, guard, overwrite)
        columns = {field: Column.jagged(dtype, values)}
        if expected is not None:
            with pytest.raises(expected):
                self.table.put(keys, partition, columns, tags, guard, overwrite)
            return
        self.table.put(keys, partition, columns, tags, guard, overwrite)
        for key, value in zip(keys, values, strict=True):
            tag, fields = self.rows.get((partition, key), ({}, {}))
            self.rows[partition, key] = ({**tag, **tags[key]}, {**fields, field: (dtype, value)})

    def _refusal(
        self, keys: list[str], partition: str, field: str, dtype: str, guard: Guard | None, overwrite: bool
    ) -> type[TransferError] | None:
        if guard is not None:
            row = self.rows.get((partition, guard.key))
            if row is None or any(row[0].get(name) != value for name, value in guard.tag.items()):
                return Fenced
        held = [fields[field][0] for (name, _), (_, fields) in self.rows.items() if name == partition and field in fields]
        if held and held[0] != dtype:
            return FieldMismatch
        if not overwrite and any(field in self.rows.get((partition, key), ({}, {}))[1] for key in keys):
            return FieldExists
        return None

    @rule(keys=KEYS, partition=PARTITIONS, tag=TAGS)
    def set_tags(self, keys: list[str], partition: str, tag: Tag) -> None:
        tags = dict.fromkeys(keys, tag)
        if any((partition, key) not in self.rows for key in keys):
            with pytest.raises(UnknownRow):
                self.table.set_tags(tags, partition)
            return
        self.table.set_tags(tags, partition)
        for key in keys:
            old, fields = self.rows[partition, key]
            self.rows[partition, key] = ({**old, **tag}, fields)

    @rule(keys=KEYS, partition=PARTITIONS)
    def clear(self, keys: list[str], partition: str) -> None:
        self.table.clear(keys, partition)
        for key in keys:
            self.rows.pop((partition, key), None)

    @rule(keys=KEYS.filter(bool), partition=PARTITIONS, field=FIELDS)
    def get(self, keys: list[str], partition: str, field: str) -> None:
        if any((partition, key) not in self.rows for key in keys):
            with pytest.raises(UnknownRow):
                self.table.get(keys, partition, [field])
        elif any(field not in self.rows[partition, key][1] for key in keys):
            with pytest.raises(MissingField):
                self.table.get(keys, partition, [field])
        else:
            found = self.table.get(keys, partition, [field])[field].to_list()
            assert found == [self.rows[partition, key][1][field][1] for key in keys]

    @rule(partition=PARTITIONS, where=st.none() | TAGS)
    def watch(self, partition: str, where: Tag | None) -> None:
        self.watches.append((self.table.watch(partition, where), {}))

    @rule(partition=PARTITIONS, where=st.none() | TAGS)
    def list_tags(self, partition: str, where: Tag | None) -> None:
        groups = self.table.table.tags(partition, where)
        assert RowTags(groups) == self._listed(partition, where)
        assert all(group.keys for group in groups)

    @rule(data=st.data())
    def read_a_watch(self, data: st.DataObject) -> None:
        if self.watches:
            watcher, seen = data.draw(st.sampled_from(self.watches))
            self._read(watcher, seen)
            assert seen == self._listed(watcher.partition, watcher.where)

    def _read(self, watcher: Watcher, seen: dict[str, Any]) -> None:
        before = watcher.seq
        event = self.table.event(watcher)
        if event is None:
            return
        assert event.seq == before + 1
        if isinstance(event, Snapshot):
            seen.clear()
        for key, tag in event.rows.items():
            if tag is None:
                seen.pop(key, None)
            else:
                seen[key] = tag

    def _listed(self, partition: str, where: Tag | None) -> dict[str, Tag]:
        wanted = (where or {}).items()
        found = {key: tag for (name, key), (tag, _) in self.rows.items() if name == partition}
        return {key: tag for key, tag in found.items() if all(tag.get(name) == value for name, value in wanted)}

    @invariant()
    def lists_and_bytes_agree(self) -> None:
        sizes = {"int64": 8, "uint8": 1}
        for partition in ("train", "val"):
            assert self.table.list_rows(partition) == self._listed(partition, None)
        live = sum(sizes[dtype] * len(value) for _, fields in self.rows.values() for dtype, value in fields.values())
        stats = self.table.stats()
        assert stats.live_bytes == live <= stats.stored_bytes
        if not self.rows:
            assert (stats.segments, stats.stored_bytes) == (0, 0)

    def teardown(self) -> None:
        for watcher, seen in self.watches:
            self._read(watcher, seen)
            assert seen == self._listed(watcher.partition, watcher.where)
            self.table.unwatch(watcher)
        assert self.table.stats().watchers == 0


TestTableAgainstDict = TableAgainstDict.TestCase
TestTableAgainstDict.settings = settings(max_examples=50, stateful_step_count=20, deadline=None)
