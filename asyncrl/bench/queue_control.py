"""What ``asyncrl bench queue`` does with tags and many calls at once."""

import statistics
import time
from contextlib import aclosing
from functools import partial

import numpy as np

from asyncrl.bench.job import Echo
from asyncrl.bench.rounds import MICROSECONDS, median_microseconds
from asyncrl.runtime.ref import ActorRef
from asyncrl.runtime.tasks import Crew, all_of
from asyncrl.tensors.wire import Column
from asyncrl.transfer_queue.client import TransferQueue

FLIGHT, TAGS, SMALL, WATCHED = "flight", "tags", "small", "watched"


class ManyPuts:
    """Puts of one row of 1 KB, so many in flight; and empty calls in the same number."""

    def __init__(self, queue: TransferQueue, echo: ActorRef[Echo], in_flight: int, each: int) -> None:
        self._queue, self._echo, self._in_flight, self._each = queue, echo, in_flight, each
        self._fields = {"value": Column.dense(np.ones((1, 256), np.float32))}

    async def puts(self) -> float:
        """Puts a second."""
        keys = [[f"{caller}x{number}_0_0" for number in range(self._each)] for caller in range(self._in_flight)]
        await self._queue.kv_clear([key for own in keys for key in own], FLIGHT)

        async def caller(own: list[str]) -> None:
            for key in own:
                await self._queue.kv_put(key, FLIGHT, self._fields)

        start = time.perf_counter()
        await all_of([partial(caller, own) for own in keys])
        return self._in_flight * self._each / (time.perf_counter() - start)

    async def calls(self) -> float:
        """Empty calls a second."""

        async def caller() -> None:
            for _ in range(self._each):
                await self._echo.call(Echo.nothing)

        start = time.perf_counter()
        await all_of([caller] * self._in_flight)
        return self._in_flight * self._each / (time.perf_counter() - start)


class Tags:
    """Rows that have tags alone."""

    def __init__(self, queue: TransferQueue, listed: int, calls: int) -> None:
        self._queue, self._calls = queue, calls
        self._keys = [f"s1e0p{number}_0_0" for number in range(listed)]

    async def fill(self) -> None:
        """Puts all keys, with tags as a trainer has them."""
        tags = [{"status": "finished", "prompt_len": 100 + n % 50, "response_len": n % 800, "score": n / 7} for n in range(len(self._keys))]
        await self._queue.kv_batch_put(self._keys, TAGS, tags=tags)

    async def list_keys(self) -> float:
        """Microseconds for all keys with their tags."""
        return await median_microseconds(5, self._list)

    async def _list(self, index: int) -> None:
        found = await self._queue.kv_list(TAGS)
        if len(found) != len(self._keys):
            raise RuntimeError(f"{len(self._keys)} keys are listed as {len(found)}")

    async def put_tags(self) -> float:
        """Puts of one tag a second, one after another."""
        start = time.perf_counter()
        for number in range(self._calls):
            await self._queue.kv_put("marker", WATCHED, tag={"n": number})
        return self._calls / (time.perf_counter() - start)

    async def wakeup(self) -> float:
        """Microseconds from the call of a put until a watcher of its row has the event."""
        spent: list[float] = []
        crew = Crew()

        async def put(number: int) -> None:
            await self._queue.kv_put("watched", WATCHED, tag={"for": "watcher", "n": number})

        async with aclosing(self._queue.watch(WATCHED, {"for": "watcher"})) as events:
            await anext(events)
            for number in range(self._calls // 4 + 1):
                start = time.perf_counter()
                writing = crew.start(put, number, name="the put that wakes")
                await anext(events)
                spent.append(time.perf_counter() - start)
                await writing
        return statistics.median(spent) * MICROSECONDS


class SmallRows:
    """Many short rows of two fields, in one put."""

    def __init__(self, queue: TransferQueue, rows: int) -> None:
        self._queue = queue
        self._keys = [f"s1e0p{number}_0_0" for number in range(rows)]
        lengths = [64 + number % 33 for number in range(rows)]
        self._fields = {
            "ids": Column.jagged("int32", [np.zeros(length, np.int32) for length in lengths]),
            "logs": Column.jagged("float32", [np.zeros(length, np.float32) for length in lengths]),
        }

    async def put(self) -> float:
        """Rows a second."""
        await self._queue.kv_clear(self._keys, SMALL)
        start = time.perf_counter()
        await self._queue.kv_batch_put(self._keys, SMALL, self._fields)
        return len(self._keys) / (time.perf_counter() - start)

    async def get(self) -> float:
        """Rows a second; of the rows that ``put`` left."""
        start = time.perf_counter()
        found = await self._queue.kv_batch_get(self._keys, SMALL, list(self._fields))
        if found["ids"].rows != len(self._keys):
            raise RuntimeError("rows are missing")
        return len(self._keys) / (time.perf_counter() - start)
