"""``Replay``: what the records of a journal make of an empty table, and what of it a resumed run begins without."""

from collections.abc import Iterator, Mapping, Sequence

from asyncrl.runtime.effects import OperationKey
from asyncrl.tensors.wire import Column, describe
from asyncrl.transfer_queue.journal import JournalFile
from asyncrl.transfer_queue.losses import Losses
from asyncrl.transfer_queue.records import ClearRecord, Damage, PutRecord, Record, columns_of
from asyncrl.transfer_queue.rows import Origin
from asyncrl.transfer_queue.table import ShardTable

Origins = Sequence[tuple[Origin, int]]


class Replay:
    """Takes the records of a shard in their order.

    ``resume_step``: the clears that wait for a checkpoint of a later step than it do not count, nor what later steps computed.
    None: the same run goes on, everything holds, and ``retained`` is what must still wait for a checkpoint.
    """

    def __init__(self, table: ShardTable, losses: Losses, resume_step: int | None) -> None:
        self._table, self._losses, self._resume_step = table, losses, resume_step
        self.damages: list[Damage] = []
        self.operations: list[OperationKey] = []
        """Idempotent changes, in their order."""
        self.retained: list[tuple[int, int]] = []
        """(file, step): what lies in the file and later ones must stay until a checkpoint of the step."""
        self.undone: dict[str, dict[str, None]] = {}
        """Keys of rows, by partition, which are not as their records alone would have them."""

    def apply(self, record: Record, body: memoryview, file: int) -> None:
        """The next whole record, of the journal's file ``file``."""
        self._table.event = max(self._table.event, record.event)
        if record.operation is not None:
            self.operations.append(record.operation)
        if isinstance(record, PutRecord):
            self._put(record, columns_of(record, body), file)
        elif self._resume_step is None or record.retain <= self._resume_step:
            self._clear(record)
        else:
            self._undone(record.partition, record.keys)

    def damaged(self, damage: Damage) -> None:
        """Bytes in the place of the next record.

        What a damaged put has overwritten is out of date: it is dropped, so that nobody takes it for the last state.
        """
        self.damages.append(damage)
        record = damage.record
        if damage.torn:
            return
        if not isinstance(record, PutRecord):
            self._losses.unnamed = True
            return
        for head in record.fields:
            lost = [key for key, undone in zip(record.keys, self._undone_rows(head.origins), strict=True) if not undone]
            if record.event:
                self._table.drop_field(record.partition, head.name, lost)
            else:
                # It was a copy of what an older file may still hold.
                lost = [key for key in lost if not self._table.holds(key, record.partition, head.name)]
            self._losses.add(record.partition, lost, head.name)

    def _put(self, record: PutRecord, columns: dict[str, Column], file: int) -> None:
        table, partition = self._table, record.partition
        if self._resume_step is None and record.event:
            self._retain(record)
        origins: dict[str, Origins] = {head.name: head.origins for head in record.fields}
        kept = self._without_undone(record, columns, origins)
        tags = {key: tag for key, tag in record.tags.items() if table.exists(key, partition)} if record.merges else record.tags
        for name, column in [*columns.items(), *((name, column) for name, _, column in kept)]:
            self._make_way(partition, name, column, file)
        table.put(record.keys, partition, columns, tags, {name: list(origins[name]) for name in columns}, file)
        self._losses.written(partition, record.keys, columns)
        for name, rows, column in kept:
            keys = [record.keys[row] for row in rows]
            each = list(_each(origins[name]))
            table.put(keys, partition, {name: column}, {}, {name: [(each[row], 1) for row in rows]}, file)
            self._losses.written(partition, keys, [name])

    def _retain(self, record: PutRecord) -> None:
        """What the step overwrote comes back when the run resumes from before it."""
        steps = sorted({origin.step for head in record.fields for origin, _ in head.origins if origin.computed})
        lowest = self._table.oldest_file(record.keys, record.partition) if steps else None
        if lowest is not None:
            self.retained += [(lowest, step) for step in steps]

    def _without_undone(
        self, record: PutRecord, columns: dict[str, Column], origins: Mapping[str, Origins]
    ) -> list[tuple[str, list[int], Column]]:
        """Takes columns with undone rows out of ``columns``; returns their other rows: (field, places, column)."""
        kept = []
        for name in list(columns):
            undone = self._undone_rows(origins[name])
            if any(undone):
                column = columns.pop(name)
                self._undone(record.partition, [key for key, gone in zip(record.keys, undone, strict=True) if gone])
                rows = [row for row, gone in enumerate(undone) if not gone]
                if rows:
                    kept.append((name, rows, column.take(rows)))
        return kept

    def _undone_rows(self, origins: Origins) -> list[bool]:
        return [gone for origin, rows in origins for gone in [origin.undone(self._resume_step)] * rows]

    def _undone(self, partition: str, keys: Sequence[str]) -> None:
        self.undone.setdefault(partition, {}).update(dict.fromkeys(keys))

    def _make_way(self, partition: str, name: str, column: Column, file: int) -> None:
        """Drop what rows hold in a field in another layout: they were cleared, and the record of it is lost."""
        layout = self._table.layout(partition, name)
        if layout is not None and layout != column.layout:
            keys = self._table.drop_field(partition, name)
            self._losses.add(partition, keys, name)
            reason = f"field {name!r} becomes {describe(column.layout)}, older values as {describe(layout)} are dropped"
            self.damages.append(Damage(JournalFile(file).name, 0, 0, reason))

    def _clear(self, record: ClearRecord) -> None:
        lowest = self._table.oldest_file(record.keys, record.partition)
        if record.retain >= 0 and self._resume_step is None and lowest is not None:
            self.retained.append((lowest, record.retain))
        self._table.clear(record.keys, record.partition)
        if record.event:
            # Else the rows follow, as far as they were there when they were written down anew.
            self._losses.cleared(record.partition, record.keys)


def _each(origins: Origins) -> Iterator[Origin]:
    for origin, rows in origins:
        yield from [origin] * rows
