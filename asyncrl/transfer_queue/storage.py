"""``ShardStorage``: the table of one shard together with its journal. What is accepted is written first, then applied."""

from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from asyncrl.runtime.effects import OperationKey
from asyncrl.tensors.wire import Column
from asyncrl.transfer_queue.journal import Journal, JournalFile
from asyncrl.transfer_queue.records import ClearRecord, Damage, PutRecord, Record, columns_of, field_heads
from asyncrl.transfer_queue.rows import Guard, Origin, Tag
from asyncrl.transfer_queue.segments import Cell, Row, gather, merged_origins
from asyncrl.transfer_queue.table import ShardTable
from asyncrl.transfer_queue.watch import Watcher

OPERATIONS = 4096
"""Latest idempotent changes that are remembered over a restart."""
MOVED_ROWS = 256
"""Rows of one record when rows are copied forward or into a snapshot."""
SPARE_BYTES = 64 << 20
"""Dead bytes of a journal below which it is left alone."""


@dataclass(frozen=True, slots=True)
class RowRef:
    """A row as it was at one moment: what it refers to never changes in place."""

    tag: Tag
    cells: dict[str, Cell]


class ShardStorage:
    """Changes of one shard. ``journal`` is None where nothing is kept on disk."""

    def __init__(self, table: ShardTable, journal: Journal | None) -> None:
        self.table, self.journal = table, journal
        self._done: OrderedDict[OperationKey, None] = OrderedDict()

    def replay(self, resume_step: int | None = None) -> list[Damage]:
        """Brings back what the journal holds, but not what later steps than ``resume_step`` did: neither the clears that wait for
        a checkpoint of theirs, nor what they computed.

        Returns what is damaged. ``resume_step`` None: the same run goes on, everything holds.
        """
        if self.journal is None:
            return []
        kept: list[tuple[int, int]] = []
        undone: dict[str, dict[str, None]] = {}

        def apply(record: Record, body: memoryview, file: int) -> None:
            self.table.event = max(self.table.event, record.event)
            self._remember(record.operation)
            if isinstance(record, PutRecord):
                origins = {head.name: head.origins for head in record.fields}
                columns = columns_of(record, body)
                for name in [name for name, found in origins.items() if any(origin.undone(resume_step) for origin, _ in found)]:
                    del columns[name]
                    undone.setdefault(record.partition, {}).update(dict.fromkeys(record.keys))
                self.table.put(record.keys, record.partition, columns, record.tags, origins, file)
            elif resume_step is None or record.retain <= resume_step:
                lowest = self.table.oldest_file(record.keys, record.partition)
                if record.retain >= 0 and resume_step is None and lowest is not None:
                    kept.append((lowest, record.retain))
                self.table.clear(record.keys, record.partition)
            else:
                undone.setdefault(record.partition, {}).update(dict.fromkeys(record.keys))

        damages = self.journal.replay(apply)
        self._begin_anew(undone)
        for number, step in kept:
            self.journal.retain(number, step)
        return damages

    def _begin_anew(self, undone: Mapping[str, Iterable[str]]) -> None:
        """Write down the rows that were given back: a later resume must not read what was undone as if it had happened."""
        assert self.journal is not None
        records: list[tuple[Record, list[Column]]] = []
        for partition, keys in undone.items():
            rows = self.table.partitions[partition].rows if partition in self.table.partitions else {}
            found = [key for key in keys if key in rows]
            if found:
                records.append((ClearRecord(0, partition, found), []))
                records += self._copies(partition, {key: tuple(rows[key].cells) for key in found})
        if not records:
            return
        file = self.journal.add_file(records)
        for record, columns in records:
            if isinstance(record, PutRecord):
                self.table.clear(record.keys, record.partition)
                origins = {head.name: head.origins for head in record.fields}
                self.table.put(record.keys, record.partition, dict(zip(origins, columns, strict=True)), record.tags, origins, file)

    def _copies(self, partition: str, fields: Mapping[str, tuple[str, ...]]) -> Iterator[tuple[PutRecord, list[Column]]]:
        """Records of these fields of these rows, as they are now."""
        rows = self.table.partitions[partition].rows
        for names, group in grouped(fields):
            cells = {name: [rows[key].cells[name] for key in group] for name in names}
            columns = {name: gather(found) for name, found in cells.items()}
            origins = {name: merged_origins(found) for name, found in cells.items()}
            tags = {key: rows[key].tag for key in group}
            yield PutRecord(0, partition, group, tags, field_heads(columns, origins)), list(columns.values())

    def _remember(self, operation: OperationKey | None) -> None:
        if operation is not None:
            self._done[operation] = None
            if len(self._done) > OPERATIONS:
                self._done.popitem(last=False)

    def done(self, operation: OperationKey | None) -> bool:
        """Whether this change has been applied, be it in an earlier life of the shard."""
        return operation is not None and operation in self._done

    def put(
        self,
        keys: Sequence[str],
        partition: str,
        fields: Mapping[str, Column],
        tags: Mapping[str, Tag],
        origin: Origin,
        guard: Guard | None = None,
        overwrite: bool = False,
        operation: OperationKey | None = None,
    ) -> list[Watcher]:
        """Writes rows, all or nothing. Raises as ``ShardTable.check``, and QueueStorageError when the disk refuses."""
        self.table.check(keys, partition, fields, guard, overwrite)
        return self.write(keys, partition, fields, tags, origin, operation)

    def write(
        self,
        keys: Sequence[str],
        partition: str,
        fields: Mapping[str, Column],
        tags: Mapping[str, Tag],
        origin: Origin,
        operation: OperationKey | None,
    ) -> list[Watcher]:
        """As ``put``, of what was checked."""
        origins = {name: [(origin, len(keys))] for name in fields}
        file = 0
        if self.journal is not None:
            if origin.computed and (lowest := self.table.oldest_file(keys, partition)) is not None:
                # What it may overwrite comes back when the run resumes from before that step.
                self.journal.retain(lowest, origin.step)
            heads = field_heads(fields, origins)
            record = PutRecord(self.table.event + 1, partition, list(keys), dict(tags), heads, operation)
            file = self.journal.append(record, list(fields.values()))
        self.table.event += 1
        self._remember(operation)
        return self.table.put(keys, partition, fields, tags, origins, file)

    def set_tags(self, tags: Mapping[str, Tag], partition: str, origin: Origin, operation: OperationKey | None = None) -> list[Watcher]:
        """Merges tags into rows that exist, all or none. Raises UnknownRow, QueueStorageError."""
        self.table.check_rows(tags, partition)
        return self.write((), partition, {}, tags, origin, operation)

    def clear(self, keys: Sequence[str], partition: str, retain: int = -1, operation: OperationKey | None = None) -> list[Watcher]:
        """Removes rows. ``retain`` >= 0: their records stay until a checkpoint of that step or a later one is committed."""
        lowest = self.table.oldest_file(keys, partition)
        if lowest is None:
            return []
        if self.journal is not None:
            self.journal.append(ClearRecord(self.table.event + 1, partition, list(keys), retain, operation))
            if retain >= 0:
                self.journal.retain(lowest, retain)
        self.table.event += 1
        self._remember(operation)
        return self.table.clear(keys, partition)

    def wasteful(self) -> JournalFile | None:
        """The file to compact next: the oldest one, when more than half of the journal is dead and it may go."""
        journal = self.journal
        if journal is None or journal.size - self.table.stored_bytes < max(self.table.stored_bytes, SPARE_BYTES):
            return None
        return journal.oldest()

    def move(self, file: JournalFile) -> bool:
        """Copies some rows of the oldest file forward, or drops it when none is left. Returns whether it is gone."""
        assert self.journal is not None
        for partition, part in self.table.partitions.items():
            rows = [key for key, row in part.rows.items() if _lies_in(row, file.number)]
            if rows:
                self._move(partition, rows[:MOVED_ROWS], file.number)
                return False
        self.journal.drop(file)
        return True

    def _move(self, partition: str, keys: Sequence[str], number: int) -> None:
        assert self.journal is not None
        rows = self.table.partitions[partition].rows
        for record, columns in self._copies(partition, {key: _fields_in(rows[key], number) for key in keys}):
            file = self.journal.append(record, columns)
            origins = {head.name: head.origins for head in record.fields}
            self.table.put(record.keys, partition, dict(zip(origins, columns, strict=True)), {}, origins, file)
            for key in record.keys:
                rows[key].file = file

    def restore(self, records: Iterable[tuple[PutRecord, dict[str, Column]]]) -> None:
        """Takes over the rows of a snapshot; the journal gets them too."""
        for record, columns in records:
            origins = {head.name: head.origins for head in record.fields}
            file = 0 if self.journal is None else self.journal.append(record, list(columns.values()))
            self.table.put(record.keys, record.partition, columns, record.tags, origins, file)

    def rows_now(self) -> dict[str, dict[str, RowRef]]:
        """All rows of all partitions at this moment, as references: cheap, and later changes do not touch them."""
        return {
            name: {key: RowRef(row.tag, dict(row.cells)) for key, row in part.rows.items()}
            for name, part in self.table.partitions.items()
            if part.rows
        }


def _lies_in(row: Row, number: int) -> bool:
    return row.file == number or any(segment.file == number for segment, _ in row.cells.values())


def _fields_in(row: Row, number: int) -> tuple[str, ...]:
    return tuple(name for name, (segment, _) in row.cells.items() if segment.file == number)


def grouped(names: Mapping[str, tuple[str, ...]]) -> Iterator[tuple[tuple[str, ...], list[str]]]:
    """Keys together that have the same fields, in their order, at most ``MOVED_ROWS`` at a time."""
    groups: dict[tuple[str, ...], list[str]] = {}
    for key, fields in names.items():
        groups.setdefault(fields, []).append(key)
    for fields, keys in groups.items():
        for start in range(0, len(keys), MOVED_ROWS):
            yield fields, keys[start : start + MOVED_ROWS]
