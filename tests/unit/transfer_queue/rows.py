"""A table with its storage and no journal, as the tests drive it."""

from collections.abc import Mapping, Sequence

from asyncrl.tensors.wire import Column
from asyncrl.transfer_queue.rows import Guard, Origin, Tag
from asyncrl.transfer_queue.segments import Segment
from asyncrl.transfer_queue.storage import ShardStorage
from asyncrl.transfer_queue.table import ShardTable
from asyncrl.transfer_queue.watch import Watcher

ORIGIN = Origin("tester", 1.5, 2, 3)


class Rows:
    """One shard's rows."""

    def __init__(self, slot: int, incarnation: str) -> None:
        self.table = ShardTable(slot, incarnation)
        self.storage = ShardStorage(self.table, None)
        self.get, self.list_rows, self.watch, self.unwatch = self.table.get, self.table.list_rows, self.table.watch, self.table.unwatch
        self.event, self.stats, self.clear = self.table.event_for, self.table.stats, self.storage.clear

    def put(
        self,
        keys: Sequence[str],
        partition: str,
        fields: Mapping[str, Column],
        tags: Mapping[str, Tag],
        guard: Guard | None = None,
        overwrite: bool = False,
    ) -> list[Watcher]:
        """As ``ShardStorage.put``, written by ``ORIGIN``."""
        return self.storage.put(keys, partition, fields, tags, ORIGIN, guard, overwrite)

    def set_tags(self, tags: Mapping[str, Tag], partition: str) -> list[Watcher]:
        """As ``ShardStorage.set_tags``."""
        return self.storage.set_tags(tags, partition, ORIGIN)


def segment_of(column: Column) -> Segment:
    """A segment that no row owns."""
    return Segment("x", column, [(ORIGIN, column.rows)], 0, [None] * column.rows)
