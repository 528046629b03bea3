"""``TransferQueue``: the client of all shards. Requests go to their shards in parallel, answers keep the order of keys."""

import asyncio
import math
from collections.abc import AsyncGenerator, Callable, Coroutine, Mapping, Sequence
from contextlib import aclosing
from functools import partial
from itertools import chain
from typing import Any, TypeVar

from asyncrl.errors import ActorDied, CallTimedOut, FieldMismatch, MissingField, QueueFull
from asyncrl.runtime.ref import ActorRef
from asyncrl.runtime.retries import Retries
from asyncrl.runtime.tasks import Crew, all_of
from asyncrl.tensors.wire import Column, describe
from asyncrl.transfer_queue.keys import by_slot, check_keys, check_put, placement
from asyncrl.transfer_queue.row_tags import RowTags, TagGroup
from asyncrl.transfer_queue.rows import Change, Cut, Guard, Origin, ShardStats, Snapshot, Stamp, Tag, WatchEvent
from asyncrl.transfer_queue.shard import QueueShard
from asyncrl.transfer_queue.snapshot import Manifest

__all__ = ["Change", "Guard", "Origin", "ShardStats", "Snapshot", "Tag", "TransferQueue", "WatchEvent"]

T = TypeVar("T")

SNAPSHOT_SECONDS = 300.0
MISSES = 6
"""Tries of a watch in a row that reach nobody: then the shard is gone, though no supervisor says so. Where nobody listens they take
two seconds each, with the pauses about 15 s."""
LONGEST_PAUSE = 1.0
"""Seconds between two tries of a watch, at most."""


class TransferQueue:
    """Keyed rows over shards, given in the order of their slots.

    A request that touches one shard is one call. Over several shards it is one call to each, atomic on each alone:
    when one refuses, others may have applied their part. Columns must not change while a put of them runs.
    """

    def __init__(self, shards: Sequence[ActorRef[QueueShard]]) -> None:
        if not shards:
            raise ValueError("a TransferQueue needs at least one shard")
        self._shards = tuple(shards)

    @property
    def shards(self) -> int:
        """How many there are; a row lies where this number puts it."""
        return len(self._shards)

    async def kv_put(
        self,
        key: str,
        partition_id: str,
        fields: Mapping[str, Column] | None = None,
        tag: Tag | None = None,
        *,
        guard: Guard | None = None,
        overwrite: bool = False,
        step: int = -1,
        version: int = -1,
    ) -> None:
        """Write fields (columns of one row) and merge the tag of one row. Raises as ``kv_batch_put``."""
        tags = None if tag is None else [tag]
        await self.kv_batch_put([key], partition_id, fields, tags, guard=guard, overwrite=overwrite, step=step, version=version)

    async def kv_batch_put(
        self,
        keys: Sequence[str],
        partition_id: str,
        fields: Mapping[str, Column] | None = None,
        tags: Sequence[Tag] | None = None,
        *,
        also_tags: Mapping[str, Tag] | None = None,
        guard: Guard | None = None,
        overwrite: bool = False,
        step: int = -1,
        version: int = -1,
        computed: bool = False,
    ) -> None:
        """Write columns of N rows and merge their N tags, all at once on each shard; missing rows are made.

        ``also_tags`` merges tags of further rows, which get no fields, in the same stroke. ``guard`` applies everything
        only if its row still has those tags; all rows must live on its shard. A put of no rows does nothing.
        ``step`` and ``version`` (of the policy) are kept as the origin of the fields, with the caller and the time. ``computed``
        fields are what ``step`` made of the rows: a run that resumes from before it finds the rows as they were.
        New rows wait for room within the deadline of the shards' references; a field for rows that are in never does.
        Raises Fenced, FieldExists (without ``overwrite``), FieldMismatch; ValueError before anything is sent.
        """
        columns, also = fields or {}, also_tags or {}
        check_put(keys, columns, tags)
        names = [*keys, *also] if also else keys
        if also:
            check_keys(names)
        slots = by_slot(names, len(self._shards))
        if guard is not None and any(slot != placement(guard.key, len(self._shards)) for slot in slots):
            raise ValueError(f"guard {guard.key!r} and the rows it guards live on different shards; put them apart")
        by_key = {**dict(zip(keys, tags or (), strict=False)), **also}
        origin = Stamp(step, version, computed)
        if len(slots) == 1:
            (slot,) = slots
            await _put(self._shards[slot], list(keys), partition_id, dict(columns), by_key, guard, overwrite, origin)
            return

        async def put(slot: int, places: list[int]) -> None:
            rows = [place for place in places if place < len(keys)]
            part = {name: column if len(rows) == len(keys) else column.take(rows) for name, column in columns.items()}
            shared = {names[place]: by_key[names[place]] for place in places if names[place] in by_key}
            own = [keys[row] for row in rows]
            await _put(self._shards[slot], own, partition_id, part, shared, guard, overwrite, origin)

        await _on_each(slots, put)

    async def kv_batch_get(self, keys: Sequence[str], partition_id: str, fields: Sequence[str]) -> dict[str, Column]:
        """The named fields, rows in the order of ``keys``. Raises UnknownRow, MissingField; ValueError for a key named twice.

        No keys give columns of no rows in the layouts that the partition knows.
        """
        check_keys(keys)
        if not keys:
            return await self._no_rows(partition_id, fields)
        slots = by_slot(keys, len(self._shards))

        async def get(slot: int, places: list[int]) -> dict[str, Column]:
            return await self._shards[slot].call(QueueShard.get, [keys[place] for place in places], partition_id, list(fields))

        parts = await _on_each(slots, get)
        if len(parts) == 1:
            return parts[0]
        came = [place for places in slots.values() for place in places]
        order = sorted(range(len(keys)), key=came.__getitem__)
        return {name: _join(name, list(slots), [part[name] for part in parts]).take(order) for name in fields}

    async def kv_origins(self, key: str, partition_id: str) -> dict[str, Origin]:
        """Which process wrote each field of a row, when, in which step and with which policy version. Raises UnknownRow."""
        return await self._shards[placement(key, len(self._shards))].call(QueueShard.origins, key, partition_id)

    async def kv_list(self, partition_id: str, where: Tag | None = None) -> RowTags:
        """The tags of all rows whose tag has every item of ``where``: a mapping by key, columnar inside."""

        async def list_rows(slot: int, _: list[int]) -> list[TagGroup]:
            return await self._shards[slot].call(QueueShard.list_rows, partition_id, where)

        return RowTags(chain.from_iterable(await _on_each(self._every_slot(), list_rows)))

    async def kv_set_tags(self, keys: Sequence[str], partition_id: str, tags: Sequence[Tag]) -> None:
        """Merge tags into rows that exist. Raises UnknownRow; then no row of that shard is changed."""
        check_put(keys, {}, tags)

        async def set_tags(slot: int, places: list[int]) -> None:
            await self._shards[slot].call(QueueShard.set_tags, {keys[place]: tags[place] for place in places}, partition_id)

        await _on_each(by_slot(keys, len(self._shards)), set_tags)

    async def kv_clear(self, keys: Sequence[str], partition_id: str, *, retain: int | None = None) -> None:
        """Remove rows; keys without a row are ignored.

        With ``retain`` (a step) a journal keeps their records until ``committed`` of that step or a later one: a run that
        resumes from an earlier checkpoint finds them again.
        """

        async def clear(slot: int, places: list[int]) -> None:
            held = -1 if retain is None else retain
            await self._shards[slot].call(QueueShard.clear, [keys[place] for place in places], partition_id, held)

        await _on_each(by_slot(keys, len(self._shards)), clear)

    async def committed(self, step: int) -> None:
        """A checkpoint of ``step`` is on disk: rows that were cleared with ``retain`` up to it are not needed any more."""

        async def committed(slot: int, _: list[int]) -> None:
            await self._shards[slot].call(QueueShard.committed, step)

        await _on_each(self._every_slot(), committed)

    async def cut(self, without: Sequence[str], partition_id: str) -> list[Cut]:
        """The moment of the next ``snapshot``, for each shard; it will leave out the rows ``without``."""
        left_out = by_slot(without, len(self._shards))

        async def cut(slot: int, _: list[int]) -> Cut:
            return await self._shards[slot].call(QueueShard.cut, [without[place] for place in left_out.get(slot, [])], partition_id)

        return await _on_each(self._every_slot(), cut)

    async def snapshot(self, folder: str, cuts: Sequence[Cut] | None = None) -> list[Manifest]:
        """Every shard writes its rows into ``folder``, as they were at ``cuts``, else as they are, while puts go on.

        The folder is one that all shards' machines see; what an earlier one left there is replaced. Raises QueueStorageError,
        also where a shard was restarted since its cut, or has written it, or made another.
        """

        async def snapshot(slot: int, _: list[int]) -> Manifest:
            cut = None if cuts is None else cuts[slot]
            return await self._shards[slot].with_deadline(SNAPSHOT_SECONDS).call(QueueShard.snapshot, folder, cut)

        return await _on_each(self._every_slot(), snapshot)

    async def watch(self, partition_id: str, where: Tag | None = None) -> AsyncGenerator[WatchEvent, None]:
        """The rows of all shards as they change: a snapshot of each shard, then its changes, as they come.

        A shard that is restarted is followed: its next event is a snapshot, which says what was lost.

        consumes: the streams of all shards
        produces: their events, in order for each shard
        waits for: the next event of any shard
        unblocked by: a put, tag or clear on a watched row; the death of a shard, which is raised
        """
        events: asyncio.Queue[WatchEvent | Exception] = asyncio.Queue(maxsize=len(self._shards))
        crew = Crew()
        try:
            for slot, shard in enumerate(self._shards):
                crew.start(_follow, shard, partition_id, where, events, name=f"watch {partition_id} on shard {slot}")
            while True:
                event = await events.get()
                if isinstance(event, Exception):
                    raise event
                yield event
        finally:
            await crew.close(seconds=2.0)

    async def stats(self) -> list[ShardStats]:
        """Figures of every shard, in the order of slots."""

        async def stats(slot: int, _: list[int]) -> ShardStats:
            return await self._shards[slot].call(QueueShard.stats)

        return await _on_each(self._every_slot(), stats)

    def _every_slot(self) -> dict[int, list[int]]:
        return {slot: [] for slot in range(len(self._shards))}

    async def _no_rows(self, partition_id: str, fields: Sequence[str]) -> dict[str, Column]:
        """Ask shard after shard for each field: it is known where a row holds it. Raises MissingField for one that none knows."""

        async def ask(name: str) -> Column:
            for shard in self._shards[:-1]:
                try:
                    return (await shard.call(QueueShard.get, [], partition_id, [name]))[name]
                except MissingField:
                    continue
            return (await self._shards[-1].call(QueueShard.get, [], partition_id, [name]))[name]

        return dict(zip(fields, await all_of([partial(ask, name) for name in fields]), strict=True))


async def _put(
    shard: ActorRef[QueueShard],
    keys: list[str],
    partition_id: str,
    fields: dict[str, Column],
    tags: dict[str, Tag],
    guard: Guard | None,
    overwrite: bool,
    stamp: Stamp,
) -> None:
    """One put. A shard without room has dropped what came; it is asked for room, and the put is sent again in its turn.

    All of it has the time of one call. Whoever waited for room at a life of the shard that ended asks the next one.
    """
    loop, seconds = asyncio.get_running_loop(), shard.deadline
    end = loop.time() + seconds if seconds else math.inf
    ticket, again = 0, shard
    try:
        while True:
            try:
                await again.call(QueueShard.put, keys, partition_id, fields, tags, guard, overwrite, stamp, ticket)
                return
            except QueueFull as error:
                needed = error.needed
            again = _until(end, shard)
            try:
                ticket = await again.call(QueueShard.room, needed)
            except ActorDied as error:
                if not error.lost:
                    raise
                ticket = 0
            again = _until(end, shard)
    except CallTimedOut as error:
        raise CallTimedOut(error.who, error.what, seconds or error.seconds) from None


def _until(end: float, shard: ActorRef[QueueShard]) -> ActorRef[QueueShard]:
    """The shard, for calls that have until ``end`` of the loop's clock."""
    if end == math.inf:
        return shard
    left = end - asyncio.get_running_loop().time()
    # 0 would be no deadline at all, and less than that is one that has passed.
    return shard.with_deadline(left if left > 0 else -1.0)


async def _on_each(slots: Mapping[int, list[int]], ask: Callable[[int, list[int]], Coroutine[Any, Any, T]]) -> list[T]:
    """``ask(slot, places)`` of all slots at the same time, results in their order; one needs no task of its own."""
    if len(slots) == 1:
        return [await ask(slot, places) for slot, places in slots.items()]
    return await all_of([partial(ask, slot, places) for slot, places in slots.items()])


async def _follow(shard: ActorRef[QueueShard], partition_id: str, where: Tag | None, events: asyncio.Queue[WatchEvent | Exception]) -> None:
    """Pass the events of one shard on, over its restarts; how it ended for good is the last of them."""
    missed, again, retries = 0, True, Retries(LONGEST_PAUSE)
    while again:
        heard = lived = False
        try:
            # Without a limit: rows may rest for hours, and the death of the shard ends the stream.
            async with aclosing(shard.with_deadline(0.0).stream(QueueShard.watch, partition_id, where)) as stream:
                async for event in stream:
                    heard = True
                    await events.put(event)
            ended: Exception = ActorDied(shard.address.actor, "its watch ended")
            again = heard
        except ActorDied as error:
            # A stream to a shard that is restarted waits for it, however soon its lives end; to one that is gone it fails at once
            # where somebody has told so. Where nobody has, it reaches nobody, again and again.
            ended, again, lived = error, heard or error.lost, error.lived
        except Exception as error:
            ended, again = error, False
        if heard or lived:
            missed = 0
            retries.succeeded()
        else:
            missed += 1
            again = again and missed < MISSES
        if again and not heard:
            await retries.pause()
    await events.put(ended)


def _join(name: str, slots: Sequence[int], parts: Sequence[Column]) -> Column:
    """The parts of one field from several shards. Raises FieldMismatch when shards hold different layouts."""
    for slot, part in zip(slots, parts, strict=True):
        if part.layout != parts[0].layout:
            raise FieldMismatch(name, slot, describe(part.layout), describe(parts[0].layout))
    return Column.concat(parts)
