"""``asyncrl bench queue``: the TransferQueue over one shard process.

single_put, single_get: p50 of one row of 1 KB. Reference: our own empty call to another child process.
jagged_put, jagged_get: 256 rows of 6 fields (three int64, three float32) of 128 to 2048 elements, payload bytes over the
wall time. Reference: the six packed buffers over tcp with blocking pyzmq, kept by a process that does nothing else.
"""

import contextlib
import random
from dataclasses import dataclass

import numpy as np
import zmq

from asyncrl.bench.echo import GET, PUT
from asyncrl.bench.job import Echo, job
from asyncrl.bench.reference import TCP, plain_client
from asyncrl.bench.report import Report
from asyncrl.bench.rounds import Pair, Progress, interleaved, median_microseconds, megabytes_per_second
from asyncrl.runtime.ref import ActorRef
from asyncrl.tensors.wire import Column
from asyncrl.transfer_queue.client import TransferQueue
from asyncrl.transfer_queue.shard import QueueShard

FIELDS = {
    "prompts": "int64",
    "responses": "int64",
    "response_mask": "int64",
    "rollout_log_probs": "float32",
    "old_log_probs": "float32",
    "rm_scores": "float32",
}
SHORTEST, LONGEST, SEED = 128, 2048, 7
SINGLE, JAGGED = "single", "jagged"


@dataclass(frozen=True, slots=True)
class QueueWork:
    """How much is done: calls in one round, rows of the jagged batch."""

    rounds: int = 15
    calls: int = 300
    rows: int = 256


class EmptyCall:
    """Reference of single rows."""

    def __init__(self, echo: ActorRef[Echo], work: QueueWork) -> None:
        self._echo, self._work = echo, work

    async def latency(self) -> float:
        """Microseconds."""
        return await median_microseconds(self._work.calls, self._call)

    async def _call(self, index: int) -> object:
        return await self._echo.call(Echo.nothing)


class SingleRows:
    """One row of 1 KB at a time, each under a key of its own."""

    def __init__(self, queue: TransferQueue, work: QueueWork) -> None:
        self._queue = queue
        self._keys = [f"{index}_0_0" for index in range(work.calls)]
        self._fields = {"value": Column.dense(np.ones((1, 256), np.float32))}

    async def put(self) -> float:
        """Microseconds."""
        await self._queue.kv_clear(self._keys, SINGLE)
        return await median_microseconds(len(self._keys), self._put)

    async def get(self) -> float:
        """Microseconds; of the rows that ``put`` left."""
        return await median_microseconds(len(self._keys), self._get)

    async def _put(self, index: int) -> None:
        await self._queue.kv_put(self._keys[index], SINGLE, self._fields)

    async def _get(self, index: int) -> object:
        return await self._queue.kv_batch_get([self._keys[index]], SINGLE, ["value"])


class JaggedRows:
    """All rows in one put and one get."""

    def __init__(self, queue: TransferQueue, fields: dict[str, Column]) -> None:
        self._queue, self._fields = queue, fields
        self._size = size_of(fields)
        self._keys = [f"{index}_0_0" for index in range(next(iter(fields.values())).rows)]

    async def put(self) -> float:
        """MB/s."""
        await self._queue.kv_clear(self._keys, JAGGED)
        return await megabytes_per_second(self._size, self._put)

    async def get(self) -> float:
        """MB/s; of the rows that ``put`` left."""
        return await megabytes_per_second(self._size, self._get)

    async def check(self) -> None:
        """Raises RuntimeError unless what was put comes back."""
        await self.put()
        found = await self._queue.kv_batch_get(self._keys, JAGGED, list(self._fields))
        wrong = [name for name, column in self._fields.items() if not np.array_equal(found[name].values, column.values)]
        if wrong:
            raise RuntimeError(f"the queue gave back other values in {', '.join(wrong)}")

    async def _put(self) -> None:
        await self._queue.kv_batch_put(self._keys, JAGGED, self._fields)

    async def _get(self) -> None:
        expect(self._size, size_of(await self._queue.kv_batch_get(self._keys, JAGGED, list(self._fields))))


class PackedFrames:
    """Reference of jagged rows."""

    def __init__(self, socket: "zmq.Socket[bytes]", fields: dict[str, Column]) -> None:
        self._socket = socket
        self._frames = [column.values.tobytes() for column in fields.values()]
        self._size = size_of(fields)

    async def put(self) -> float:
        """MB/s."""
        return await megabytes_per_second(self._size, self._put)

    async def get(self) -> float:
        """MB/s; of the frames that ``put`` left."""
        return await megabytes_per_second(self._size, self._get)

    async def _put(self) -> None:
        self._socket.send_multipart([PUT, *self._frames], copy=False)
        self._socket.recv_multipart()

    async def _get(self) -> None:
        self._socket.send_multipart([GET])
        expect(self._size, sum(len(frame) for frame in self._socket.recv_multipart(copy=False)))


def jagged_fields(rows: int) -> dict[str, Column]:
    """The batch: the same lengths in all fields, seeded."""
    draw = random.Random(SEED)
    lengths = [draw.randint(SHORTEST, LONGEST) for _ in range(rows)]
    return {name: Column.jagged(dtype, [np.arange(length).astype(dtype) for length in lengths]) for name, dtype in FIELDS.items()}


def size_of(fields: dict[str, Column]) -> int:
    """Payload bytes, without offsets."""
    return sum(column.nbytes for column in fields.values())


def expect(size: int, came: int) -> None:
    """Raises RuntimeError when ``came`` bytes are not ``size``."""
    if size != came:
        raise RuntimeError(f"{size} bytes came back as {came}")


async def queue(progress: Progress, work: QueueWork | None = None) -> Report:
    """Measure all four figures."""
    work = work or QueueWork()
    fields = jagged_fields(work.rows)
    async with contextlib.AsyncExitStack() as stack:
        socket = stack.enter_context(plain_client("store", TCP))
        system = await stack.enter_async_context(job())
        shards = TransferQueue([await system.spawn(QueueShard, 0, name="shard-0", process="shard-0")])
        empty = EmptyCall(await system.spawn(Echo, name="echo", process="echo"), work)
        single, jagged, packed = SingleRows(shards, work), JaggedRows(shards, fields), PackedFrames(socket, fields)
        await jagged.check()
        pairs = {
            "single_put": Pair("us", single.put, empty.latency),
            "single_get": Pair("us", single.get, empty.latency),
            "jagged_put": Pair("MB/s", jagged.put, packed.put),
            "jagged_get": Pair("MB/s", jagged.get, packed.get),
        }
        return await interleaved("queue", pairs, work.rounds, progress)
