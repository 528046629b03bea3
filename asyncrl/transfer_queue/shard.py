"""``QueueShard``: one slot of the TransferQueue as an actor. The table decides, the actor answers and wakes watchers."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import ClassVar

from asyncrl.runtime.actor import Actor, endpoint
from asyncrl.tensors.wire import Column
from asyncrl.transfer_queue import columns as columns
from asyncrl.transfer_queue.rows import Guard, ShardStats, Tag, WatchEvent
from asyncrl.transfer_queue.table import ShardTable
from asyncrl.transfer_queue.watch import Watcher


class QueueShard(Actor):
    """The rows of slot ``slot``. No endpoint but ``watch`` ever waits, so each of them is atomic."""

    concurrency: ClassVar[int] = 0

    def __init__(self, slot: int) -> None:
        self._table = ShardTable(slot, incarnation=self.context.host.entropy(8).hex())
        self._awake: dict[Watcher, asyncio.Event] = {}

    @endpoint
    async def put(
        self,
        keys: list[str],
        partition_id: str,
        fields: dict[str, Column],
        tags: dict[str, Tag],
        guard: Guard | None,
        overwrite: bool,
    ) -> None:
        """See ``ShardTable.put``."""
        self._wake(self._table.put(keys, partition_id, fields, tags, guard, overwrite))

    @endpoint(idempotent=True)
    async def get(self, keys: list[str], partition_id: str, fields: list[str]) -> dict[str, Column]:
        """See ``ShardTable.get``."""
        return self._table.get(keys, partition_id, fields)

    @endpoint(idempotent=True)
    async def list_rows(self, partition_id: str, where: Tag | None) -> dict[str, Tag]:
        """See ``ShardTable.list_rows``."""
        return self._table.list_rows(partition_id, where)

    @endpoint(idempotent=True)
    async def set_tags(self, tags: dict[str, Tag], partition_id: str) -> None:
        """See ``ShardTable.set_tags``."""
        self._wake(self._table.set_tags(tags, partition_id))

    @endpoint(idempotent=True)
    async def clear(self, keys: list[str], partition_id: str) -> None:
        """See ``ShardTable.clear``."""
        self._wake(self._table.clear(keys, partition_id))

    @endpoint(idempotent=True)
    async def stats(self) -> ShardStats:
        """Figures of the shard now."""
        return self._table.stats()

    @endpoint
    async def watch(self, partition_id: str, where: Tag | None) -> AsyncIterator[WatchEvent]:
        """A snapshot of the partition, then its changes, until the reader leaves.

        consumes: the news that puts, tags and clears leave for this watcher
        produces: events with consecutive numbers; while the reader is slow, states of a row merge
        waits for: news, or the reader's credit
        unblocked by: ``_wake``; the reader taking items; its leaving
        """
        watcher = self._table.watch(partition_id, where)
        awake = self._awake[watcher] = asyncio.Event()
        try:
            while True:
                awake.clear()
                event = self._table.event(watcher)
                if event is not None:
                    yield event
                else:
                    await awake.wait()
        finally:
            del self._awake[watcher]
            self._table.unwatch(watcher)

    def _wake(self, watchers: Sequence[Watcher]) -> None:
        for watcher in watchers:
            self._awake[watcher].set()
