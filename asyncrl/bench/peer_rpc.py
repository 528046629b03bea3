"""Actor libraries on the work of ``asyncrl bench rpc``; run by path in an interpreter that has them, so it imports nothing of ours.

python peer_rpc.py PEER LATENCY_CALLS IN_FLIGHT CALLS_EACH FAN_OUT FAN_OUTS TENSORS TENSOR_BYTES

PEER is ray, xoscar or dask. The last line is {"latency": us, "calls_per_second": n, "fan_out": us, "tensor_echo": MB/s}.
"""

import asyncio
import contextlib
import json
import statistics
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

MESSAGE = {"method": "echo", "payload": "x" * 72, "id": 123}
Call = Callable[[int, Any], Awaitable[Any]]
"""Calls the actor of this number with one argument and gives what it echoed."""


@contextlib.asynccontextmanager
async def ray(actors: int) -> AsyncIterator[Call]:
    """One Ray actor a process."""
    import ray as library

    library.init(num_cpus=2, include_dashboard=False, log_to_driver=False, object_store_memory=512 << 20)

    class Echo:
        async def echo(self, value: Any) -> Any:
            return value

    remote = library.remote(num_cpus=0)(Echo)
    handles = [remote.remote() for _ in range(actors)]

    async def call(number: int, value: Any) -> Any:
        return await handles[number].echo.remote(value)

    try:
        yield call
    finally:
        library.shutdown()


@contextlib.asynccontextmanager
async def xoscar(actors: int) -> AsyncIterator[Call]:
    """All actors in one process of a pool."""
    import xoscar as library

    class Echo(library.Actor):  # type: ignore[name-defined,misc,unused-ignore]
        async def echo(self, value: Any) -> Any:
            return value

    pool = await library.create_actor_pool("127.0.0.1", n_process=1)
    async with pool:
        address = next(iter(pool.sub_processes))
        handles = [await library.create_actor(Echo, address=address, uid=f"echo{number}") for number in range(actors)]

        async def call(number: int, value: Any) -> Any:
            return await handles[number].echo(value)

        yield call


class DaskEcho:
    """dask finds it by its import path."""

    def echo(self, value: Any) -> Any:
        """Its argument."""
        return value


@contextlib.asynccontextmanager
async def dask(actors: int) -> AsyncIterator[Call]:
    """Actors on two workers of one thread each."""
    from distributed import Client

    async with Client(n_workers=2, threads_per_worker=1, processes=True, asynchronous=True, dashboard_address=None) as client:
        handles = [await client.submit(DaskEcho, actor=True, pure=False) for _ in range(actors)]

        async def call(number: int, value: Any) -> Any:
            return await handles[number].echo(value)

        yield call


async def measure(call: Call, latency_calls: int, in_flight: int, calls_each: int, actors: int, fans: int, tensors: int, size: int) -> Any:
    """One round of every figure, after a warm-up."""
    import numpy as np

    tensor = np.ones(size // 4, np.float32)

    async def fan(_: int) -> None:
        await asyncio.gather(*(call(number, MESSAGE) for number in range(actors)))

    async def many(_: int) -> None:
        for _ in range(calls_each):
            await call(0, MESSAGE)

    async def bulk(_: int) -> None:
        for _ in range(tensors):
            await call(0, tensor)

    async def seconds(steps: int, step: Callable[[int], Awaitable[Any]]) -> float:
        spent = []
        for number in range(steps):
            start = time.perf_counter()
            await step(number)
            spent.append(time.perf_counter() - start)
        return statistics.median(spent)

    for step in (fan, bulk, many):
        await step(0)
    latency = await seconds(latency_calls, lambda _: call(0, MESSAGE))
    start = time.perf_counter()
    await asyncio.gather(*(many(0) for _ in range(in_flight)))
    rate = in_flight * calls_each / (time.perf_counter() - start)
    fan_out = await seconds(fans, fan)
    echo = 2 * tensors * size / 1e6 / await seconds(3, bulk)
    return {"latency": latency * 1e6, "calls_per_second": rate, "fan_out": fan_out * 1e6, "tensor_echo": echo}


PEERS = {"ray": ray, "xoscar": xoscar, "dask": dask}


async def main(peer: str, work: list[int]) -> None:
    """Start the peer, measure, print."""
    async with PEERS[peer](work[3]) as call:
        print(json.dumps(await measure(call, *work)), flush=True)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], [int(argument) for argument in sys.argv[2:]]))
