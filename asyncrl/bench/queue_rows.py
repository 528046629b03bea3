"""What ``asyncrl bench queue`` does with rows, and the same bytes over a plain socket."""

import random

import numpy as np
import zmq

from asyncrl.bench.echo import GET, PUT
from asyncrl.bench.job import Echo
from asyncrl.bench.rounds import median_microseconds, megabytes_per_second
from asyncrl.runtime.ref import ActorRef
from asyncrl.tensors.wire import Column
from asyncrl.transfer_queue.client import TransferQueue

FIELDS = {
    "prompts": "int64",
    "responses": "int64",
    "response_mask": "int64",
    "rollout_log_probs": "float32",
    "old_log_probs": "float32",
    "rm_scores": "float32",
}
SHORTEST, LONGEST, SEED = 128, 2048, 7
SINGLE, BATCH = "single", "batch"


class EmptyCall:
    """Reference of single rows."""

    def __init__(self, echo: ActorRef[Echo], calls: int) -> None:
        self._echo, self._calls = echo, calls

    async def latency(self) -> float:
        """Microseconds."""
        return await median_microseconds(self._calls, self._call)

    async def _call(self, index: int) -> object:
        return await self._echo.call(Echo.nothing)


class SingleRows:
    """One row of 1 KB at a time, each under a key of its own."""

    def __init__(self, queue: TransferQueue, calls: int) -> None:
        self._queue = queue
        self._keys = [f"{index}_0_0" for index in range(calls)]
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


class BatchRows:
    """All rows of some fields in one put and one get."""

    def __init__(self, queue: TransferQueue, fields: dict[str, Column]) -> None:
        self._queue, self._fields = queue, fields
        self._size = size_of(fields)
        self._keys = [f"{index}_0_0" for index in range(next(iter(fields.values())).rows)]

    async def put(self) -> float:
        """MB/s."""
        await self._queue.kv_clear(self._keys, BATCH)
        return await megabytes_per_second(self._size, self._put)

    async def get(self) -> float:
        """MB/s; of the rows that ``put`` left."""
        return await megabytes_per_second(self._size, self._get)

    async def clear(self) -> None:
        """Removes the rows."""
        await self._queue.kv_clear(self._keys, BATCH)

    async def check(self) -> None:
        """Raises RuntimeError unless what was put comes back."""
        await self.put()
        found = await self._queue.kv_batch_get(self._keys, BATCH, list(self._fields))
        wrong = [name for name, column in self._fields.items() if not np.array_equal(found[name].values, column.values)]
        if wrong:
            raise RuntimeError(f"the queue gave back other values in {', '.join(wrong)}")

    async def _put(self) -> None:
        await self._queue.kv_batch_put(self._keys, BATCH, self._fields)

    async def _get(self) -> None:
        expect(self._size, size_of(await self._queue.kv_batch_get(self._keys, BATCH, list(self._fields))))


class PackedFrames:
    """The buffers of all fields over a plain socket."""

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


def dense_fields(size: int) -> dict[str, Column]:
    """One dense float32 field of ``size`` bytes in 64 rows."""
    return {"x": Column.dense(np.ones((64, size // 256), np.float32))}


def size_of(fields: dict[str, Column]) -> int:
    """Payload bytes, without offsets."""
    return sum(column.nbytes for column in fields.values())


def expect(size: int, came: int) -> None:
    """Raises RuntimeError when ``came`` bytes are not ``size``."""
    if size != came:
        raise RuntimeError(f"{size} bytes came back as {came}")
