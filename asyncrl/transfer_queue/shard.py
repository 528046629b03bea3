"""``QueueShard``: one slot of the TransferQueue as an actor. The storage decides and writes, the actor answers and wakes."""

import asyncio
import logging
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from typing import ClassVar, Literal

import msgspec

from asyncrl.errors import MissingField, QueueStorageError, ShardLost, UnknownRow
from asyncrl.runtime.actor import Actor, endpoint
from asyncrl.runtime.curve import CONTROLLER
from asyncrl.tensors.wire import Column
from asyncrl.transfer_queue import columns as columns, snapshot
from asyncrl.transfer_queue.budget import Budget
from asyncrl.transfer_queue.journal import SYNC_SECONDS, Journal
from asyncrl.transfer_queue.records import Damage
from asyncrl.transfer_queue.row_tags import TagGroup
from asyncrl.transfer_queue.rows import Cut, Guard, Origin, ShardStats, Stamp, Tag, WatchEvent, tag_in_words
from asyncrl.transfer_queue.snapshot import Manifest
from asyncrl.transfer_queue.storage import RowRef, ShardStorage
from asyncrl.transfer_queue.table import CELL_BYTES, ROW_BYTES, SEGMENT_BYTES, ShardTable
from asyncrl.transfer_queue.watch import Watcher

logger = logging.getLogger(__name__)

WORTH = 1 << 17
"""Bytes of a put below which it never came in shared memory."""
READS_SAMPLED = 8
"""One of so many reads is noted in the event file, the first one always."""


class ShardOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How a shard keeps its rows.

    ``budget_bytes``: memory that new rows may take, 0 for no bound. ``journal``: "off" keeps nothing on disk, "interval"
    syncs once a second, "always" before each acknowledgement; its files lie in ``journal_folder``/shard-N.
    ``resume_step`` >= 0: the run goes on from that checkpoint, and clears that waited for a later one are undone.
    ``restore``: a folder with snapshots, shard-N in it, whose rows are taken over at the start where the journal brings none:
    it goes on behind them.
    """

    budget_bytes: int = 0
    journal: Literal["off", "interval", "always"] = "off"
    journal_folder: str = ""
    resume_step: int = -1
    restore: str = ""


class QueueShard(Actor):
    """The rows of slot ``slot``. Only ``room``, ``watch``, ``snapshot`` and puts under ``journal=always`` ever wait."""

    concurrency: ClassVar[int] = 0
    process_role: ClassVar[str] = "shard"

    def __init__(self, slot: int, options: ShardOptions | None = None) -> None:
        self._slot, self._options = slot, options or ShardOptions()
        identity = self.context.system.identity
        self._table = ShardTable(slot, incarnation=f"{identity.attempt}.{identity.generation}")
        self._storage = ShardStorage(self._table, self._journal())
        limit, table = self._options.budget_bytes, self._table
        self._budget = Budget(slot, limit, lambda: table.used_bytes, table.squeeze, self.context.host, identity.generation)
        self._awake: dict[Watcher, asyncio.Event] = {}
        self._damages: list[Damage] = []
        self._reads = self._cuts = 0
        self._cut: tuple[dict[str, dict[str, RowRef]], Cut] | None = None
        self._dirty, self._synced = asyncio.Event(), asyncio.Condition()
        self._sync_timer: asyncio.TimerHandle | None = None

    def _journal(self) -> Journal | None:
        if self._options.journal == "off":
            return None
        return Journal(self.context.host.storage(f"{self._options.journal_folder}/shard-{self._slot}"))

    async def on_start(self) -> None:
        """Brings back what an earlier life of the shard has written, or says that it is lost."""
        identity = self.context.system.identity
        journal, first = self._storage.journal, identity.generation == 0
        if journal is not None:
            # A restart within the attempt continues the run: what waits for a checkpoint stays cleared. One that comes after a
            # start which was killed does what that one should have done.
            first = not journal.start(identity.attempt, first=first)
            resume = self._options.resume_step if first else -1
            self._damages = self._storage.replay(resume if resume >= 0 else None)
            for damage in self._damages:
                logger.warning("shard %d: %s", self._slot, damage.in_words())
        elif identity.generation:
            self._table.lost = f"{identity.attempt}.{identity.generation - 1}"
            logger.warning("shard %d has lost the rows of incarnation %s: it keeps no journal", self._slot, self._table.lost)
        if self._options.restore and first and not self._table.partitions:
            _, records = snapshot.load(self.context.host.storage(f"{self._options.restore}/shard-{self._slot}"))
            self._storage.restore(records)
        if journal is not None:
            journal.started(identity.attempt)
            self.context.background(self._sync_for_ever, name="sync of the journal")

    async def on_stop(self) -> None:
        """Hands the journal to the disk."""
        self._budget.close()
        if self._sync_timer is not None:
            self._sync_timer.cancel()
        if self._storage.journal is not None:
            self._storage.journal.close()

    @endpoint(idempotent=True)
    async def put(
        self,
        keys: list[str],
        partition_id: str,
        fields: dict[str, Column],
        tags: dict[str, Tag],
        guard: Guard | None,
        overwrite: bool,
        stamp: Stamp,
        ticket: int,
    ) -> None:
        """See ``ShardStorage.put``. Raises QueueFull for new rows without room; ``ticket`` is what ``room`` gave, or 0."""
        operation = self.context.operation
        if self._storage.done(operation):
            return
        origin = Origin(self.context.caller, self.context.host.wall_time(), stamp.step, stamp.version, stamp.computed)
        try:
            # What is refused in any case waits for no room.
            self._table.check(keys, partition_id, fields, guard, overwrite)
            if self._budget.limit and fields and not self._table.holds_fields(keys, partition_id):
                needed = size_of(keys, fields)
                self._budget.check_size(needed)
                self._budget.admit(needed, ticket)
            fields = self._taken_over(fields)
            self._wake(self._storage.write(keys, partition_id, fields, tags, origin, operation))
        finally:
            if self._budget.limit:
                self._budget.settle(ticket)
        self._note("queue.put", keys, partition_id, fields, tags, stamp.step, stamp.version)
        if tags:
            own = set(keys)
            for key in [key for key in tags if key not in own]:
                self._note("queue.tags", [key], partition_id, (), tags, stamp.step, stamp.version)
        await self._written()

    @endpoint
    async def room(self, needed: int) -> int:
        """Waits for room for new rows, in turn with the others; gives the ticket with which to put them."""
        return await self._budget.room(self.context.caller, needed)

    @endpoint(idempotent=True)
    async def get(self, keys: list[str], partition_id: str, fields: list[str]) -> dict[str, Column]:
        """See ``ShardTable.get``. Raises ShardLost for a row or a field that may have been lost."""
        try:
            # What is gathered belongs to the reader; storage is sent as a copy.
            found = self._table.get(keys, partition_id, fields, self.context.system.shared_memory.allocate)
        except (UnknownRow, MissingField) as error:
            self._check_lost(error, partition_id)
            raise
        self._reads += 1
        if self._reads % READS_SAMPLED == 1:
            self._note("queue.get", keys, partition_id, fields)
        return found

    def _taken_over(self, fields: dict[str, Column]) -> dict[str, Column]:
        """The columns as data that stays: what came in the sender's memory becomes this process's own, or is copied out of it."""
        memory = self.context.system.shared_memory
        if not memory.borrowers or sum(map(nbytes, fields.values())) < WORTH:
            return fields
        # The buffers of one message lie in one segment.
        if memory.adopt(max(fields.values(), key=nbytes).values):
            return fields
        return {name: column.copy() for name, column in fields.items()}

    def _note(
        self,
        name: str,
        keys: list[str],
        partition_id: str,
        fields: Iterable[str] = (),
        tags: Mapping[str, Tag] | None = None,
        step: int = -1,
        version: int = -1,
    ) -> None:
        """Writes what happened to rows into the event file. Tags are told of a lone row: that is how markers change."""
        events = self.context.system.events
        if events is None or not keys:
            return
        told = tag_in_words(tags[keys[0]]) if tags and len(keys) == 1 and keys[0] in tags else ""
        events.note(
            name,
            keys,
            by=self.context.caller,
            partition=partition_id,
            fields=",".join(fields),
            tag=told,
            step=step,
            version=version,
            shard=self._slot,
        )

    @endpoint(idempotent=True)
    async def origins(self, key: str, partition_id: str) -> dict[str, Origin]:
        """Who wrote each field of a row. Raises UnknownRow, or ShardLost for a row that may have been lost."""
        try:
            return self._table.origins(key, partition_id)
        except UnknownRow as error:
            self._check_lost(error, partition_id)
            raise

    def _check_lost(self, error: UnknownRow | MissingField, partition_id: str) -> None:
        """Raises ShardLost when what is not there may have been there."""
        if not error.key:
            return
        if self._table.lost:
            raise ShardLost(self._slot, self._table.lost)
        losses = self._storage.losses
        if losses.hold(partition_id, error.key, error.field if isinstance(error, MissingField) else None):
            raise ShardLost(self._slot, self._table.incarnation, (error.key,))
        if losses.unnamed:
            raise ShardLost(self._slot, self._table.incarnation)

    @endpoint(idempotent=True)
    async def list_rows(self, partition_id: str, where: Tag | None) -> list[TagGroup]:
        """See ``ShardTable.tags``."""
        return self._table.tags(partition_id, where)

    @endpoint(idempotent=True)
    async def set_tags(self, tags: dict[str, Tag], partition_id: str) -> None:
        """See ``ShardStorage.set_tags``. Raises ShardLost for a row that may have been lost."""
        operation = self.context.operation
        if self._storage.done(operation):
            return
        origin = Origin(self.context.caller, self.context.host.wall_time())
        try:
            self._wake(self._storage.set_tags(tags, partition_id, origin, operation))
        except UnknownRow as error:
            self._check_lost(error, partition_id)
            raise
        self._note("queue.tags", list(tags), partition_id, (), tags)
        await self._written()

    @endpoint(idempotent=True, roles=(CONTROLLER,))
    async def clear(self, keys: list[str], partition_id: str, retain: int) -> None:
        """See ``ShardStorage.clear``."""
        operation = self.context.operation
        if self._storage.done(operation):
            return
        self._wake(self._storage.clear(keys, partition_id, retain, operation))
        self._budget.freed()
        self._note("queue.clear", keys, partition_id)
        await self._written()

    @endpoint(idempotent=True, roles=(CONTROLLER,))
    async def committed(self, step: int) -> None:
        """A checkpoint of ``step`` is on disk: what was cleared up to it is not needed any more."""
        if self._storage.journal is not None:
            self._storage.journal.committed(step)
            self._dirty.set()

    @endpoint(roles=(CONTROLLER,))
    async def cut(self, without: list[str], partition_id: str) -> Cut:
        """Keeps the rows of now for the next ``snapshot``, but for ``without``; says which moment that is."""
        rows = self._storage.rows_now()
        for key in without:
            rows.get(partition_id, {}).pop(key, None)
        self._cuts += 1
        cut = Cut(self._table.incarnation, self._table.event, self._cuts)
        self._cut = rows, cut
        return cut

    @endpoint(roles=(CONTROLLER,))
    async def snapshot(self, folder: str, cut: Cut | None) -> Manifest:
        """Writes the rows of ``cut``, None for all rows as they are now, into ``folder``/shard-N while puts go on.

        A cut can be written once. Raises QueueStorageError, also when this is not the last cut of this life of the shard.
        """
        target = self.context.host.storage(f"{folder}/shard-{self._slot}")
        if cut is None:
            rows, cut = self._storage.rows_now(), Cut(self._table.incarnation, self._table.event, 0)
        elif self._cut is None or self._cut[1] != cut:
            now = f"the shard is incarnation {self._table.incarnation}, at event {self._table.event}"
            raise QueueStorageError(target.path, f"the rows of event {cut.event} of incarnation {cut.incarnation} are gone: {now}")
        else:
            rows = self._cut[0]
            self._cut = None
        return await self.context.host.run_blocking(snapshot.write, target, self._slot, cut.incarnation, cut.event, rows)

    @endpoint(idempotent=True)
    async def stats(self) -> ShardStats:
        """Figures of the shard now."""
        journal = self._storage.journal
        return ShardStats(
            **msgspec.structs.asdict(self._table.stats()),
            used_bytes=self._table.used_bytes,
            budget_bytes=self._options.budget_bytes,
            waiting=self._budget.waiting(),
            journal=self._options.journal,
            journal_bytes=0 if journal is None else journal.size,
            damaged=[damage.in_words() for damage in self._damages],
        )

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
                event = self._table.event_for(watcher)
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

    async def _written(self) -> None:
        """Something was written. Under ``always``: returns when the disk has it; many wait for one sync."""
        journal = self._storage.journal
        if journal is None:
            return
        if self._options.journal == "always":
            self._dirty.set()
            position = journal.written
            async with self._synced:
                await self._synced.wait_for(lambda: journal.synced >= position)
        else:
            self._sync_later()

    def _sync_later(self) -> None:
        if self._sync_timer is None:
            self._sync_timer = asyncio.get_running_loop().call_later(SYNC_SECONDS, self._due)

    def _due(self) -> None:
        self._sync_timer = None
        self._dirty.set()

    async def _sync_for_ever(self) -> None:
        """Syncs what was written, and compacts a little each time.

        consumes: ``_dirty``
        waits for: something that is to be synced
        unblocked by: ``_written``, at once or after a second; ``committed``; itself while there is more to compact
        """
        journal = self._storage.journal
        assert journal is not None
        while True:
            await self._dirty.wait()
            self._dirty.clear()
            await self.context.host.run_blocking(journal.sync, journal.unsynced())
            async with self._synced:
                self._synced.notify_all()
            self._compact()

    def _compact(self) -> None:
        """Writes some rows of the oldest file anew, where that is due. A disk that has no room for them is asked again later."""
        try:
            if (file := self._storage.wasteful()) is not None:
                self._storage.move(file)
                self._budget.freed()
                self._dirty.set()
        except QueueStorageError as error:
            logger.warning("shard %d cannot compact its journal now: %s", self._slot, error)
            self._sync_later()


def nbytes(column: Column) -> int:
    """Bytes of the packed values."""
    return column.nbytes


def size_of(keys: Sequence[str], fields: dict[str, Column]) -> int:
    """What new rows take of the budget, in bytes."""
    each = SEGMENT_BYTES + CELL_BYTES * len(keys)
    return sum(column.nbytes + each for column in fields.values()) + ROW_BYTES * len(keys)
