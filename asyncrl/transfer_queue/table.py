"""``ShardTable``: all rows of one shard. A pure state machine: no waiting, no clock, no sockets.

``check`` comes before a change: it raises what is refused. Methods that change rows return the watchers that have news.
"""

from collections.abc import Iterable, Mapping, Sequence

from asyncrl.errors import Fenced, FieldExists, FieldMismatch, MissingField, UnknownRow
from asyncrl.tensors.wire import Allocate, Column, Layout, describe
from asyncrl.transfer_queue.keys import check_keys, check_put
from asyncrl.transfer_queue.row_tags import TagGroup
from asyncrl.transfer_queue.rows import Change, Guard, Origin, Snapshot, TableStats, Tag, WatchEvent, matches
from asyncrl.transfer_queue.segments import WASTE, Cell, Row, Segment, gather, merged_origins
from asyncrl.transfer_queue.tag_columns import TagColumns
from asyncrl.transfer_queue.watch import Watcher

ROW_BYTES, SEGMENT_BYTES, CELL_BYTES = 600, 880, 120
"""What a row, a segment and one field of one row take beside the values: objects, keys, small tags, offsets. Measured with keys
of ten characters and a tag of one short text, and a fifth more for longer ones."""

Changes = dict[str, tuple[Tag | None, Tag | None]]
"""Tag before and after, by key; None where there is no row. Kept for watchers: where there are none, nobody asks."""


class FieldUse:
    """The layout of a field in a partition, for as long as ``cells`` > 0 rows hold it."""

    __slots__ = ("cells", "layout")

    def __init__(self, layout: Layout) -> None:
        self.layout, self.cells = layout, 0


class Partition:
    """The rows of one partition, in the order of their first put, and who watches them."""

    __slots__ = ("fields", "rows", "tags", "watchers")

    def __init__(self) -> None:
        self.rows: dict[str, Row] = {}
        self.tags = TagColumns()
        self.fields: dict[str, FieldUse] = {}
        self.watchers: list[Watcher] = []


class ShardTable:
    """The rows of shard ``slot``; ``incarnation`` names this life of it."""

    def __init__(self, slot: int, incarnation: str) -> None:
        self.slot, self.incarnation = slot, incarnation
        self.lost = ""
        """The incarnation before this one, if its rows are gone."""
        self.event = 0
        """The number of the last change."""
        self.partitions: dict[str, Partition] = {}
        self.stored_bytes = self._segments = self._cells = self._live_bytes = self.rows = 0
        self._half_dead: dict[Segment, None] = {}

    def check(
        self, keys: Sequence[str], partition: str, fields: Mapping[str, Column], guard: Guard | None = None, overwrite: bool = False
    ) -> None:
        """Raises what ``put`` would refuse: Fenced, FieldMismatch, FieldExists, or ValueError for lists that do not fit."""
        check_put(keys, fields, None)
        self._check_guard(partition, guard)
        self._check_fields(keys, partition, fields, overwrite)

    def put(
        self,
        keys: Sequence[str],
        partition: str,
        fields: Mapping[str, Column],
        tags: Mapping[str, Tag],
        origins: Mapping[str, list[tuple[Origin, int]]],
        file: int = 0,
    ) -> list[Watcher]:
        """Write ``fields`` of the rows ``keys`` and merge ``tags`` by key; missing rows are made. ``check`` comes before.

        ``origins`` are those of each field, ``file`` the journal's file that holds this change.
        """
        part = self.partitions.setdefault(partition, Partition())
        changes: Changes = {}
        rows = [self._merge(part, key, tags.get(key, {}), changes, file) for key in keys]
        if tags:
            own = set(keys)
            for key, tag in tags.items():
                if key not in own:
                    self._merge(part, key, tag, changes, file)
        for name, column in fields.items():
            if column.rows:
                self._write(part, Segment(name, column, origins[name], file, list(rows)), rows)
        self._drop_if_unused(partition, part)
        return self._news(part, changes) if changes else []

    def get(self, keys: Sequence[str], partition: str, fields: Sequence[str], allocate: Allocate | None = None) -> dict[str, Column]:
        """The named fields of rows, in the order of ``keys``; copied, where they must be, into memory of ``allocate``.

        Raises UnknownRow, MissingField.

        No keys give columns of no rows, in the layout that each field has in the partition.
        """
        check_keys(keys)
        if not keys:
            return {name: self._no_rows(partition, name) for name in fields}
        rows = [self._row(key, partition) for key in keys]
        cells = {name: [self._cell(key, row, name) for key, row in zip(keys, rows, strict=True)] for name in fields}
        return {name: gather(found, allocate) for name, found in cells.items()}

    def origins(self, key: str, partition: str) -> dict[str, Origin]:
        """Who wrote each field of a row. Raises UnknownRow."""
        return {name: segment.origin(index) for name, (segment, index) in self._row(key, partition).cells.items()}

    def list_rows(self, partition: str, where: Tag | None = None) -> dict[str, Tag]:
        """The tags of all rows that match, by key, in the order of their first put."""
        part = self.partitions.get(partition)
        if part is None:
            return {}
        tags = {key: row.tag for key, row in part.rows.items()}
        return {key: tag for key, tag in tags.items() if matches(tag, where)} if where else tags

    def tags(self, partition: str, where: Tag | None = None) -> list[TagGroup]:
        """As ``list_rows``, in columns: rows whose tags have the same names together."""
        part = self.partitions.get(partition)
        return [] if part is None else part.tags.matching(where)

    def check_rows(self, keys: Iterable[str], partition: str) -> None:
        """Raises UnknownRow unless all rows exist."""
        for key in keys:
            self._row(key, partition)

    def holds_fields(self, keys: Sequence[str], partition: str) -> bool:
        """Whether every one of these rows exists and has a field."""
        part = self.partitions.get(partition)
        return part is not None and all(key in part.rows and part.rows[key].cells for key in keys)

    def exists(self, key: str, partition: str) -> bool:
        """Whether there is such a row."""
        part = self.partitions.get(partition)
        return part is not None and key in part.rows

    def holds(self, key: str, partition: str, field: str) -> bool:
        """Whether there is such a row, and it has the field."""
        return self.exists(key, partition) and field in self.partitions[partition].rows[key].cells

    def layout(self, partition: str, field: str) -> Layout | None:
        """The layout in which the rows of a partition hold a field; None where no row does."""
        part = self.partitions.get(partition)
        return part.fields[field].layout if part is not None and field in part.fields else None

    def drop_field(self, partition: str, field: str, keys: Iterable[str] | None = None) -> list[str]:
        """Forget what these rows, None for all, hold in a field; returns the keys of those that held it."""
        part = self.partitions.get(partition)
        if part is None:
            return []
        wasteful: dict[Segment, None] = {}
        dropped = [key for key in (part.rows if keys is None else keys) if self.holds(key, partition, field)]
        for key in dropped:
            self._release(part, field, part.rows[key].cells.pop(field), wasteful)
        for segment in wasteful:
            self._shrink(segment)
        return dropped

    def oldest_file(self, keys: Sequence[str], partition: str) -> int | None:
        """The lowest journal file that holds anything of these rows; None when none of them exists."""
        part = self.partitions.get(partition)
        rows = [part.rows[key] for key in keys if key in part.rows] if part else []
        return min((min([row.file, *(segment.file for segment, _ in row.cells.values())]) for row in rows), default=None)

    def clear(self, keys: Sequence[str], partition: str) -> list[Watcher]:
        """Remove rows; keys without a row are ignored. Their bytes are free at once, or as soon as others of their segment are."""
        part = self.partitions.get(partition)
        if part is None:
            return []
        changes: Changes = {}
        wasteful: dict[Segment, None] = {}
        for key in keys:
            row = part.rows.pop(key, None)
            if row is not None:
                for name, cell in row.cells.items():
                    self._release(part, name, cell, wasteful)
                self.rows -= 1
                if part.watchers:
                    changes[key] = (row.tag, None)
                part.tags.remove(row)
        for segment in wasteful:
            self._shrink(segment)
        news = self._news(part, changes)
        self._drop_if_unused(partition, part)
        return news

    def watch(self, partition: str, where: Tag | None = None) -> Watcher:
        """A new watcher; the first event it takes is a snapshot."""
        watcher = Watcher(partition, where)
        self.partitions.setdefault(partition, Partition()).watchers.append(watcher)
        return watcher

    def unwatch(self, watcher: Watcher) -> None:
        """Forget a watcher."""
        part = self.partitions[watcher.partition]
        part.watchers.remove(watcher)
        self._drop_if_unused(watcher.partition, part)

    def event_for(self, watcher: Watcher) -> WatchEvent | None:
        """What a watcher is to be told now; None for nothing."""
        if watcher.stale:
            watcher.stale = False
            rows = self.list_rows(watcher.partition, watcher.where)
            return Snapshot(self.slot, self.incarnation, watcher.next_seq(), rows, self.lost)
        if not watcher.pending:
            return None
        return Change(self.slot, self.incarnation, watcher.next_seq(), watcher.take())

    def squeeze(self) -> bool:
        """Frees the dead bytes of all segments that are more than half dead, however few. Returns whether there were any.

        What is copied is less than what becomes free, so that all copies together are less than what was put.
        """
        half_dead, self._half_dead = self._half_dead, {}
        for segment in half_dead:
            self._shrink(segment)
        return bool(half_dead)

    @property
    def used_bytes(self) -> int:
        """Memory that the rows take, roughly: packed values, and a fixed sum for each row, each segment and each of their cells."""
        return self.stored_bytes + ROW_BYTES * self.rows + SEGMENT_BYTES * self._segments + CELL_BYTES * self._cells

    def stats(self) -> TableStats:
        """Figures of the rows now."""
        return TableStats(
            slot=self.slot,
            incarnation=self.incarnation,
            event=self.event,
            partitions={name: len(part.rows) for name, part in self.partitions.items()},
            segments=self._segments,
            stored_bytes=self.stored_bytes,
            live_bytes=self._live_bytes,
            watchers=sum(len(part.watchers) for part in self.partitions.values()),
        )

    def _row(self, key: str, partition: str) -> Row:
        part = self.partitions.get(partition)
        if part is None or key not in part.rows:
            raise UnknownRow(key, partition, self.slot)
        return part.rows[key]

    def _cell(self, key: str, row: Row, name: str) -> Cell:
        if name not in row.cells:
            raise MissingField(key, name, self.slot, tuple(row.cells))
        return row.cells[name]

    def _no_rows(self, partition: str, name: str) -> Column:
        part = self.partitions.get(partition)
        if part is None or name not in part.fields:
            raise MissingField("", name, self.slot, tuple(part.fields) if part else ())
        return Column.empty(part.fields[name].layout)

    def _check_guard(self, partition: str, guard: Guard | None) -> None:
        if guard is None:
            return
        part = self.partitions.get(partition)
        row = part.rows.get(guard.key) if part else None
        if row is None or not matches(row.tag, guard.tag):
            seen = "no row" if row is None else repr({name: row.tag[name] for name in guard.tag if name in row.tag})
            raise Fenced(guard.key, repr(guard.tag), seen)

    def _check_fields(self, keys: Sequence[str], partition: str, fields: Mapping[str, Column], overwrite: bool) -> None:
        part = self.partitions.get(partition)
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

    def _merge(self, part: Partition, key: str, tag: Tag, changes: Changes, file: int) -> Row:
        """The row of a key, made if missing, with ``tag`` merged into its tag."""
        row = part.rows.get(key)
        if row is None:
            row = part.rows[key] = Row(file)
            part.tags.add(key, row, tag)
            self.rows += 1
            if part.watchers:
                changes[key] = (None, dict(tag))
        elif tag:
            # What its tag was before lies in an older file; only a whole tag may be said to lie in this one.
            if part.watchers:
                old = row.tag
                changes[key] = (old, {**old, **tag})
            part.tags.merge(key, row, tag)
        return row

    def _write(self, part: Partition, segment: Segment, rows: Sequence[Row]) -> None:
        """Let the rows refer to a new segment in place of what they held."""
        name = segment.name
        self._segments += 1
        self.stored_bytes += segment.nbytes
        self._live_bytes += segment.nbytes
        use = part.fields.setdefault(name, FieldUse(segment.column.layout))
        use.cells += len(rows)
        self._cells += len(rows)
        wasteful: dict[Segment, None] = {}
        for index, row in enumerate(rows):
            replaced = row.cells.get(name)
            row.cells[name] = (segment, index)
            if replaced is not None:
                self._release(part, name, replaced, wasteful)
        for other in wasteful:
            self._shrink(other)

    def _release(self, part: Partition, name: str, cell: Cell, wasteful: dict[Segment, None]) -> None:
        """A row no longer refers to a cell. A segment that is worth a copy of its rest now is added to ``wasteful``."""
        segment, index = cell
        self._live_bytes -= segment.release(index)
        self._cells -= 1
        if not segment.live_rows:
            self._segments -= 1
            self.stored_bytes -= segment.nbytes
            self._half_dead.pop(segment, None)
        elif dead := segment.dead_bytes:
            (wasteful if dead >= WASTE else self._half_dead)[segment] = None
        use = part.fields[name]
        use.cells -= 1
        if not use.cells:
            del part.fields[name]

    def _shrink(self, segment: Segment) -> None:
        """Copy the live rows of a segment into a new one, so that the bytes of the dead ones are free."""
        self._half_dead.pop(segment, None)
        if not segment.live_rows:
            return
        alive = [(index, row) for index, row in enumerate(segment.owners) if row is not None]
        cells = [(segment, index) for index, _ in alive]
        column = segment.column.take([index for index, _ in alive])
        smaller = Segment(segment.name, column, merged_origins(cells), segment.file, [row for _, row in alive])
        self.stored_bytes -= segment.nbytes - smaller.nbytes
        for index, (_, row) in enumerate(alive):
            row.cells[segment.name] = (smaller, index)

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
            self.partitions.pop(partition, None)
