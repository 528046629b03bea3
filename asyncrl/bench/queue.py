"""``asyncrl bench queue``: the TransferQueue over one shard process on this host.

single_put, single_get: p50 of one row of 1 KB. Reference: our own empty call to another child process.
in_flight_puts: the same puts with 32 in flight. Reference: our own empty calls, as many in flight.
jagged_put, jagged_get: 256 rows of 6 fields (three int64, three float32) of 128 to 2048 elements, payload bytes over the
wall time. dense_put, dense_get: 64 MiB in one field. Reference of these four: the packed buffers over tcp with blocking
pyzmq, kept by a process that does nothing else.
large_put, large_get: 512 MiB in one field. Reference: a copy of as much into fresh memory. large_get_warm: a get after another
one, beside a copy into memory that is in use.
wakeup: from the call of a put to the event at a watcher. list_keys: 8,192 keys with four tags each. small_rows_put,
small_rows_get: 4,096 rows of two short fields. tag_puts: one tag after another. Reference of wakeup, list_keys and
small_rows_put: what the queue promises (2 ms, 5 ms, 80,000 rows/s); of the others: the empty call.
journal_single_put, journal_jagged_put: with ``journal=interval``. Reference: a shard without a journal.
shard_spawn, shard_idle_cpu, shard_idle_memory: a shard process, against 0.5 s, 0.5 % of a core, 60 MB.
"""

import contextlib
import tempfile
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import numpy as np

from asyncrl.bench.job import Echo, job
from asyncrl.bench.processes import cost_of
from asyncrl.bench.queue_control import ManyPuts, SmallRows, Tags
from asyncrl.bench.queue_rows import BatchRows, EmptyCall, PackedFrames, SingleRows, dense_fields, jagged_fields
from asyncrl.bench.reference import TCP, plain_client
from asyncrl.bench.report import Figure, Report
from asyncrl.bench.rounds import MEGA, Pair, Progress, interleaved
from asyncrl.runtime.system import ActorSystem
from asyncrl.transfer_queue.client import TransferQueue
from asyncrl.transfer_queue.shard import QueueShard, ShardOptions

WAKEUP_MICROSECONDS, LIST_MICROSECONDS, SMALL_ROWS_A_SECOND = 2000.0, 5000.0, 80_000.0
SHARD_MEGABYTES = 60.0


@dataclass(frozen=True, slots=True)
class QueueWork:
    """How much is done: calls in one round, rows of the batches, bytes of the dense fields, keys of a list."""

    rounds: int = 9
    calls: int = 300
    in_flight: int = 32
    rows: int = 256
    dense_bytes: int = 64 << 20
    large_bytes: int = 512 << 20
    large_rounds: int = 3
    small_rows: int = 4096
    listed: int = 8192
    spawns: int = 3
    idle_seconds: float = 10.0


async def queue(progress: Progress, work: QueueWork | None = None) -> Report:
    """Measure all figures."""
    work = work or QueueWork()
    figures: dict[str, Figure] = {}
    async with contextlib.AsyncExitStack() as stack:
        system = await stack.enter_async_context(job())
        shards = await shard(system, "shard-0")
        figures |= (await _rows(system, shards, work, progress)).figures
        figures |= (await _control(system, shards, work, progress)).figures
        figures |= (await _large(shards, work, progress)).figures
        figures |= (await _journal(system, shards, work, progress)).figures
        progress("queue: an idle shard")
        names = [f"idle-shard-{number}" for number in range(work.spawns)]
        costs = await cost_of(lambda number: shard(system, names[number]), names, work.idle_seconds, SHARD_MEGABYTES)
        figures |= {f"shard_{name}": figure for name, figure in costs.items()}
    return Report("queue", figures)


async def shard(system: ActorSystem, name: str, options: ShardOptions | None = None) -> TransferQueue:
    """A queue of one shard in a process of its own."""
    return TransferQueue([await system.spawn(QueueShard, 0, options, name=name, process=name)])


async def _rows(system: ActorSystem, shards: TransferQueue, work: QueueWork, progress: Progress) -> Report:
    jagged, dense = jagged_fields(work.rows), dense_fields(work.dense_bytes)
    echo = await system.spawn(Echo, name="echo", process="echo")
    with plain_client("store", TCP) as socket:
        empty, single = EmptyCall(echo, work.calls), SingleRows(shards, work.calls)
        many = ManyPuts(shards, echo, work.in_flight, max(1, work.calls // 10))
        ours, packed = BatchRows(shards, jagged), PackedFrames(socket, jagged)
        thick, raw = BatchRows(shards, dense), PackedFrames(socket, dense)
        await ours.check()
        pairs = {
            "single_put": Pair("us", single.put, empty.latency),
            "single_get": Pair("us", single.get, empty.latency),
            "in_flight_puts": Pair("puts/s", many.puts, many.calls),
            "jagged_put": Pair("MB/s", ours.put, packed.put),
            "jagged_get": Pair("MB/s", ours.get, packed.get),
            "dense_put": Pair("MB/s", thick.put, raw.put),
            "dense_get": Pair("MB/s", thick.get, raw.get),
        }
        report = await interleaved("queue", pairs, work.rounds, progress)
        # What is stored would leave the large rows less shared memory.
        await ours.clear()
        return report


async def _control(system: ActorSystem, shards: TransferQueue, work: QueueWork, progress: Progress) -> Report:
    tags, small = Tags(shards, work.listed, work.calls), SmallRows(shards, work.small_rows)
    await tags.fill()
    empty = EmptyCall(await system.spawn(Echo, name="echo-1", process="echo-1"), work.calls)

    async def empty_calls() -> float:
        return 1e6 / await empty.latency()

    pairs = {
        "wakeup": Pair("us", tags.wakeup, promised(WAKEUP_MICROSECONDS)),
        "list_keys": Pair("us", tags.list_keys, promised(LIST_MICROSECONDS)),
        "small_rows_put": Pair("rows/s", small.put, promised(SMALL_ROWS_A_SECOND)),
        "small_rows_get": Pair("rows/s", small.get, promised(SMALL_ROWS_A_SECOND)),
        "tag_puts": Pair("puts/s", tags.put_tags, empty_calls),
    }
    return await interleaved("queue control", pairs, work.rounds, progress)


def promised(value: float) -> Callable[[], Awaitable[float]]:
    """A promise as a reference."""

    async def reference() -> float:
        return value

    return reference


async def _large(shards: TransferQueue, work: QueueWork, progress: Progress) -> Report:
    rows = BatchRows(shards, dense_fields(work.large_bytes))

    async def again() -> float:
        """A get whose memory an earlier one has left behind."""
        await rows.get()
        return await rows.get()

    source, target = np.ones(work.large_bytes, np.uint8), np.zeros(work.large_bytes, np.uint8)

    async def fresh() -> float:
        start = time.perf_counter()
        source.copy()
        return work.large_bytes / MEGA / (time.perf_counter() - start)

    async def warm() -> float:
        start = time.perf_counter()
        np.copyto(target, source)
        return work.large_bytes / MEGA / (time.perf_counter() - start)

    pairs = {
        "large_put": Pair("MB/s", rows.put, fresh),
        "large_get": Pair("MB/s", rows.get, fresh),
        "large_get_warm": Pair("MB/s", again, warm),
    }
    report = await interleaved("queue large", pairs, work.large_rounds, progress)
    await rows.clear()
    return report


async def _journal(system: ActorSystem, shards: TransferQueue, work: QueueWork, progress: Progress) -> Report:
    with tempfile.TemporaryDirectory() as folder:
        kept = await shard(system, "shard-1", ShardOptions(journal="interval", journal_folder=folder))
        jagged = jagged_fields(work.rows)
        pairs = {
            "journal_single_put": Pair("us", SingleRows(kept, work.calls).put, SingleRows(shards, work.calls).put),
            "journal_jagged_put": Pair("MB/s", BatchRows(kept, jagged).put, BatchRows(shards, jagged).put),
        }
        return await interleaved("queue journal", pairs, work.rounds, progress)
