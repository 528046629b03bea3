"""``ShardTable``: all rows of one shard. A pure state machine: no waiting, no clock, no sockets.

Methods that change rows check everything first, then change everything, and return the watchers that have news.
"""

from collections.abc import Mapping, Sequence

from asyncrl.errors import Fenced, FieldExists, FieldMismatch, MissingField, UnknownRow
from asyncrl.tensors.wire import Column, Layout, describe
from asyncrl.transfer_queue.keys import check_keys, check_put
from asyncrl.transfer_queue.rows import Change, Guard, ShardStats, Snapshot, Tag, WatchEvent, matches
from asyncrl.transfer_queue.segments import Cell, Segment, gather
from asyncrl.transfer_queue.watch import Watcher

Changes = dict[str, tuple[Tag | None, Tag | None]]
"""Tag before and after, by key; None where there is no row."""


class Row:
    """One row: its tag, which is replaced and never changed in place, and where its fields lie."""

    __slots__ = ("cells", "tag")

    def __init__(self) -> None:
        self.tag: Tag = {}
        self.cells: dict[str, Cell] = {}


class FieldUse:
    """The layout of a field in a partition, for as long as ``cells`` > 0 rows hold it."""

    __slots__ = ("cells", "layout")

    def __init__(self, layout: Layout) -> None:
        self.layout, self.cells = layout, 0


class Partition:
    """The rows of one partition, in the order of their first put, and who watches them."""

    __slots__ = ("fields", "rows", "watchers")

    def __init__(self) -> None:
        self.rows: dict[str, Row] = {}
        self.fields: dict[str, FieldUse] = {}
        self.watchers: list[Watcher] = []


class ShardTable:
    """The rows of shard ``slot``; ``incarnation`` names this life of it."""

    def __init__(self, slot: int, incarnation: str) -> None:
        self.slot, self.incarnation = slot, incarnation
        self._partitions: dict[str, Partition] = {}
        self._segments = self._stored_bytes = self._live_bytes = 0

    def put(
        self,
        keys: Sequence[str],
        partition: str,
        fields: Mapping[str, Column],
        tags: Mapping[str, Tag],
        guard: Guard | None = None,
        overwrite: bool = False,
    ) -> list[Watcher]:
        """Write ``fields`` of the rows ``keys`` and merge ``tags`` by key, all or nothing; missing rows are made.

        Raises Fenced, FieldMismatch, FieldExists, or ValueError for lists that do not fit; then nothing is changed.
        """
        check_put(keys, fields, None)
        self._check_guard(partition, guard)
        self._check_fields(keys, partition, fields, overwrite)
        part = self._partitions.setdefault(partition, Partition())
        changes: Changes = {}
        rows = [self._merge(part, key, tags.get(key, {}), changes) for key in keys]
        for key, tag in tags.items():
            if key not in changes:
                self._merge(part, key, tag, changes)
        for name, column in fields.items():
            if column.rows:
                self._write(part, name, column, rows)
        self._drop_if_unused(partition, part)
        return self._news(part, changes)

    def get(self, keys: Sequence[str], partition: str, fields: Sequence[str]) -> dict[str, Column]:
        """The named fields of rows, in the order of ``keys``. Raises UnknownRow, MissingField.

        No keys give columns of no rows, in the layout that each field has in the partition.
        """
        check_keys(keys)
        if not keys:
            return {name: self._no_rows(partition, name) for name in fields}
        rows = [self._row(key, partition) for key in keys]
        return {name: gather([self._cell(key, row, name) for key, row in zip(keys, rows, strict=True)]) for name in fields}

    def list_rows(self, partition: str, where: Tag | None = None) -> dict[str, Tag]:
        """The tags of all rows that match, by key."""
        part = self._partitions.get(partition)
        return {key: row.tag for key, row in part.rows.items() if matches(row.tag, where)} if part else {}

    def set_tags(self, tags: Mapping[str, Tag], partition: str) -> list[Watcher]:
        """Merge tags into rows that exist, all or none. Raises UnknownRow."""
        for key in tags:
            self._row(key, partition)
        return self.put((), partition, {}, tags)

    def clear(self, keys: Sequence[str], partition: str) -> list[Watcher]:
        """Remove rows; keys without a row are ignored. A segment's memory goes with its last row."""
        part = self._partitions.get(partition)
        if part is None:
            return []
        changes: Changes = {}
        for key in keys:
            row = part.rows.pop(key, None)
            if row is not None:
                for name, cell in row.cells.items():
                    self._release(part, name, cell)
                changes[key] = (row.tag, None)
        news = self._news(part, changes)
        self._drop_if_unused(partition, part)
        return news

    def watch(self, partition: str, where: Tag | None = None) -> Watcher:
        """A new watcher; the first event it takes is a snapshot."""
        watcher = Watcher(partition, where)
        self._partitions.setdefault(partition, Partition()).watchers.append(watcher)
        return watcher

    def unwatch(self, watcher: Watcher) -> None:
        """Forget a watcher."""
        part = self._partitions[watcher.partition]
        part.watchers.remove(watcher)
        self._drop_if_unused(watcher.partition, part)

    def event(self, watcher: Watcher) -> WatchEvent | None:
        """What a watcher is to be told now; None for nothing."""
        if watcher.stale:
            watcher.stale = False
            return Snapshot(self.slot, self.incarnation, watcher.next_seq(), self.list_rows(watcher.partition, watcher.where))
        if not watcher.pending:
            return None
        return Change(self.slot, self.incarnation, watcher.next_seq(), watcher.take())

    def stats(self) -> ShardStats:
        """Figures of the shard now."""
        return ShardStats(
            slot=self.slot,
            incarnation=self.incarnation,
            partitions={name: len(part.rows) for name, part in self._partitions.items()},
            segments=self._segments,
            stored_bytes=self._stored_bytes,
            live_bytes=self._live_bytes,
            watchers=sum(len(part.watchers) for part in self._partitions.values()),
        )

    def _row(self, key: str, partition: str) -> Row:
        part = self._partitions.get(partition)
        if part is None or key not in part.rows:
            raise UnknownRow(key, partition, self.slot)
        return part.rows[key]

    def _cell(self, key: str, row: Row, name: str) -> Cell:
        if name not in row.cells:
            raise MissingField(key, name, self.slot, tuple(row.cells))
        return row.cells[name]

    def _no_rows(self, partition: str, name: str) -> Column:
        part = self._partitions.get(partition)
        if part is None or name not in part.fields:
            raise MissingField("", name, self.slot, tuple(part.fields) if part else ())
        return Column.empty(part.fields[name].layout)

    def _check_guard(self, partition: str, guard: Guard | None) -> None:
        if guard is None:
            return
        part = self._partitions.get(partition)
        row = part.rows.get(guard.key) if part else None
        if row is None or not matches(row.tag, guard.tag):
            seen = "no row" if row is None else repr({name: row.tag[name] for name in guard.tag if name in row.tag})
            raise Fenced(guard.key, repr(guard.tag), seen)

    def _check_fields(self, keys: Sequence[str], partition: str, fields: Mapping[str, Column], overwrite: bool) -> None:
        part = self._partitions.get(partition)
        if part is None:
            return
        for name, column in fields.items():
            use = part.fields.get(name)
            if use is not None and use.layout != column.layout:
                raise FieldMismatch(name, self.slot, describe(column.layout), describe(use.layout))
            if use is not None and not overwrite:
                for key in keys:
                    if key in part.rows and name in part.rows[key].cells:
                        raise FieldExists(key, name, self.slot)

    def _merge(self, part: Partition, key: str, tag: Tag, changes: Changes) -> Row:
        """The row of a key, made if missing, with ``tag`` merged into its tag."""
        row = part.rows.get(key)
        if row is None:
            row = part.rows[key] = Row()
            row.tag = dict(tag)
            changes[key] = (None, row.tag)
        elif tag:
            old, row.tag = row.tag, {**row.tag, **tag}
            changes[key] = (old, row.tag)
        return row

    def _write(self, part: Partition, name: str, column: Column, rows: list[Row]) -> None:
        """Make a segment of a column and let the rows refer to it in place of what they held."""
        segment = Segment(column)
        self._segments += 1
        self._stored_bytes += column.nbytes
        self._live_bytes += column.nbytes
        use = part.fields.setdefault(name, FieldUse(column.layout))
        use.cells += len(rows)
        for index, row in enumerate(rows):
            replaced = row.cells.get(name)
            row.cells[name] = (segment, index)
            if replaced is not None:
                self._release(part, name, replaced)

    def _release(self, part: Partition, name: str, cell: Cell) -> None:
        """A row no longer refers to a cell."""
        segment, index = cell
        self._live_bytes -= segment.release(index)
        if not segment.live_rows:
            self._segments -= 1
            self._stored_bytes -= segment.column.nbytes
        use = part.fields[name]
        use.cells -= 1
        if not use.cells:
            del part.fields[name]

    def _news(self, part: Partition, changes: Changes) -> list[Watcher]:
        """Tell the changes to every watcher; returns those that have something to take."""
        news = []
        for watcher in part.watchers:
            for key, (old, new) in changes.items():
                watcher.offer(key, old, new)
            if watcher.stale or watcher.pending:
                news.append(watcher)
        return news

    def _drop_if_unused(self, partition: str, part: Partition) -> None:
        if not part.rows and not part.watchers:
            self._partitions.pop(partition, None)
