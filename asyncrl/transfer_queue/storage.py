"""``ShardStorage``: the table of one shard together with its journal. What is accepted is written first, then applied."""

from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from asyncrl.runtime.effects import OperationKey
from asyncrl.tensors.wire import Column
from asyncrl.transfer_queue.compaction import MOVED_ROWS, Compaction
from asyncrl.transfer_queue.journal import Journal, JournalFile
from asyncrl.transfer_queue.losses import Losses
from asyncrl.transfer_queue.records import ClearRecord, Damage, PutRecord, Record, field_heads
from asyncrl.transfer_queue.replay import Replay
from asyncrl.transfer_queue.rows import Guard, Origin, Tag
from asyncrl.transfer_queue.segments import Cell, Row, gather, merged_origins
from asyncrl.transfer_queue.table import ShardTable
from asyncrl.transfer_queue.watch import Watcher

OPERATIONS = 4096
"""Latest idempotent changes that are remembered over a restart."""


@dataclass(frozen=True, slots=True)
class RowRef:
    """A row as it was at one moment: what it refers to never changes in place."""

    tag: Tag
    cells: dict[str, Cell]


class ShardStorage:
    """Changes of one shard. ``journal`` is None where nothing is kept on disk."""

    def __init__(self, table: ShardTable, journal: Journal | None) -> None:
        self.table, self.journal = table, journal
        self._compaction = None if journal is None else Compaction(table, journal)
        self.losses = Losses()
        self._done: OrderedDict[OperationKey, None] = OrderedDict()

    def replay(self, resume_step: int | None = None) -> list[Damage]:
        """Brings back what the journal holds, but not what later steps than ``resume_step`` did: neither the clears that wait for
        a checkpoint of theirs, nor what they computed.

        Returns what is damaged. ``resume_step`` None: the same run goes on, everything holds.
        """
        if self.journal is None:
            return []
        replay = Replay(self.table, self.losses, resume_step)
        self.journal.replay(replay.apply, replay.damaged)
        for operation in replay.operations:
            self._remember(operation)
        self._begin_anew(replay.undone)
        for number, step in replay.retained:
            self.journal.retain(number, step)
        return replay.damages

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
        if records:
            self.journal.add_files(records, self._added)

    def _added(self, record: Record, columns: Sequence[Column], file: int) -> None:
        """A record was written down; so the rows lie in that file."""
        if isinstance(record, ClearRecord):
            self.table.clear(record.keys, record.partition)
        else:
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
        merges: bool = False,
    ) -> list[Watcher]:
        """As ``put``, of what was checked. ``merges``: the tags are of rows that exist."""
        origins = {name: [(origin, len(keys))] for name in fields}
        file = 0
        if self.journal is not None:
            if origin.computed and (lowest := self.table.oldest_file(keys, partition)) is not None:
                # What it may overwrite comes back when the run resumes from before that step.
                self.journal.retain(lowest, origin.step)
            heads = field_heads(fields, origins)
            record = PutRecord(self.table.event + 1, partition, list(keys), dict(tags), heads, operation, merges)
            file = self.journal.append(record, list(fields.values()))
        self.table.event += 1
        self._remember(operation)
        if self.losses:
            self.losses.written(partition, keys, fields)
        return self.table.put(keys, partition, fields, tags, origins, file)

    def set_tags(self, tags: Mapping[str, Tag], partition: str, origin: Origin, operation: OperationKey | None = None) -> list[Watcher]:
        """Merges tags into rows that exist, all or none. Raises UnknownRow, QueueStorageError."""
        self.table.check_rows(tags, partition)
        return self.write((), partition, {}, tags, origin, operation, merges=True)

    def clear(self, keys: Sequence[str], partition: str, retain: int = -1, operation: OperationKey | None = None) -> list[Watcher]:
        """Removes rows. ``retain`` >= 0: their records stay until a checkpoint of that step or a later one is committed."""
        if self.losses:
            self.losses.cleared(partition, keys)
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
        """The file to compact next: see ``Compaction.due``."""
        return None if self._compaction is None else self._compaction.due()

    def move(self, file: JournalFile) -> bool:
        """Copies some rows of the oldest file forward, or drops it when none is left. Returns whether it is gone."""
        assert self.journal is not None
        assert self._compaction is not None
        found = self._compaction.rows_in(file)
        if found is None:
            self.journal.drop(file)
            return True
        self._move(*found, file.number)
        return False

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
        """Takes over the rows of a snapshot; the journal gets them too, all or none. Raises QueueStorageError."""
        found = ((record, list(columns.values())) for record, columns in records)
        if self.journal is not None:
            self.journal.add_files(found, self._added)
        else:
            for record, columns in found:
                self._added(record, columns, 0)

    def rows_now(self) -> dict[str, dict[str, RowRef]]:
        """All rows of all partitions at this moment, as references: cheap, and later changes do not touch them."""
        return {
            name: {key: RowRef(row.tag, dict(row.cells)) for key, row in part.rows.items()}
            for name, part in self.table.partitions.items()
            if part.rows
        }


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
