"""``asyncrl bench rpc``: typed calls to an actor in a child process over ipc, against pyzmq with an echo process.

latency: p50 of a whole call with a dict of about 100 bytes. Reference: REQ/REP, blocking, the same bytes already encoded.
calls_per_second: the same call with 256 in flight. Reference: ``zmq.asyncio``, MessagePack at the caller alone.
tensor_echo: a float32 column of 16 MiB there and back, bytes of both ways over the wall time. Reference: DEALER/ROUTER,
blocking, frames without a copy.
"""

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial

import msgspec
import numpy as np
import zmq

from asyncrl.bench.job import Echo, Message, job
from asyncrl.bench.reference import AsyncClient, async_client, plain_client
from asyncrl.bench.report import Report
from asyncrl.bench.rounds import Pair, Progress, interleaved, median_microseconds, megabytes_per_second
from asyncrl.runtime.host import remove_folder
from asyncrl.runtime.ref import ActorRef
from asyncrl.runtime.security import private_folder
from asyncrl.runtime.tasks import all_of, running
from asyncrl.tensors.wire import Column

MESSAGE: Message = {"method": "echo", "payload": "x" * 72, "id": 123}
SAMPLE_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class RpcWork:
    """How much is done: of calls in one round, of tensors in one round (``tensor_bytes`` each)."""

    rounds: int = 7
    latency_calls: int = 800
    in_flight: int = 256
    calls_each: int = 12
    tensors: int = 6
    tensor_bytes: int = 16 << 20


class Ours:
    """Calls through the runtime."""

    def __init__(self, echo: ActorRef[Echo], work: RpcWork) -> None:
        self._echo, self._work = echo, work
        self._column = Column.dense(np.ones(work.tensor_bytes // 4, np.float32))

    async def latency(self) -> float:
        """Microseconds."""
        return await median_microseconds(self._work.latency_calls, self._call)

    async def calls_per_second(self) -> float:
        """Calls a second."""
        return await rate_in_flight(self._work, partial(self._call, 0))

    async def tensor_echo(self) -> float:
        """MB/s, both ways."""
        return await megabytes_per_second(2 * self._work.tensors * self._work.tensor_bytes, self._tensors)

    async def _call(self, index: int) -> object:
        return await self._echo.call(Echo.message, MESSAGE)

    async def _tensors(self) -> None:
        for _ in range(self._work.tensors):
            answer = await self._echo.call(Echo.column, self._column)
            if answer.nbytes != self._work.tensor_bytes:
                raise RuntimeError(f"{self._work.tensor_bytes} bytes came back as {answer.nbytes}")


class Reference:
    """The same over pyzmq."""

    def __init__(self, small: "zmq.Socket[bytes]", large: "zmq.Socket[bytes]", many: AsyncClient, work: RpcWork) -> None:
        self._small, self._large, self._many, self._work = small, large, many, work
        self._encoded = msgspec.msgpack.encode(MESSAGE)
        self._tensor = np.ones(work.tensor_bytes // 4, np.float32).tobytes()

    async def latency(self) -> float:
        """Microseconds."""
        return await median_microseconds(self._work.latency_calls, self._round_trip)

    async def calls_per_second(self) -> float:
        """Calls a second."""
        async with asyncio.timeout(SAMPLE_SECONDS), running(self._many.read):
            return await rate_in_flight(self._work, self._call)

    async def tensor_echo(self) -> float:
        """MB/s, both ways."""
        return await megabytes_per_second(2 * self._work.tensors * self._work.tensor_bytes, self._tensors)

    async def _round_trip(self, index: int) -> object:
        self._small.send(self._encoded)
        return self._small.recv()

    async def _call(self) -> object:
        return msgspec.msgpack.decode(await self._many.call(msgspec.msgpack.encode(MESSAGE)))

    async def _tensors(self) -> None:
        for _ in range(self._work.tensors):
            self._large.send(self._tensor, copy=False)
            answer = self._large.recv(copy=False)
            if len(answer) != self._work.tensor_bytes:
                raise RuntimeError(f"{self._work.tensor_bytes} bytes came back as {len(answer)}")


async def rate_in_flight(work: RpcWork, call: Callable[[], Awaitable[object]]) -> float:
    """Calls a second when ``in_flight`` callers make ``calls_each`` calls one after another."""

    async def caller() -> None:
        for _ in range(work.calls_each):
            await call()

    start = time.perf_counter()
    await all_of([caller] * work.in_flight)
    return work.in_flight * work.calls_each / (time.perf_counter() - start)


async def rpc(progress: Progress, work: RpcWork | None = None) -> Report:
    """Measure all three figures."""
    work = work or RpcWork()
    async with contextlib.AsyncExitStack() as stack:
        folder = private_folder()
        stack.callback(remove_folder, folder)
        small = stack.enter_context(plain_client("small", f"ipc://{folder}/small"))
        large = stack.enter_context(plain_client("large", f"ipc://{folder}/large"))
        many = stack.enter_context(async_client(f"ipc://{folder}/many"))
        system = await stack.enter_async_context(job())
        ours = Ours(await system.spawn(Echo, name="echo", process="echo"), work)
        reference = Reference(small, large, many, work)
        pairs = {
            "latency": Pair("us", ours.latency, reference.latency),
            "calls_per_second": Pair("calls/s", ours.calls_per_second, reference.calls_per_second),
            "tensor_echo": Pair("MB/s", ours.tensor_echo, reference.tensor_echo),
        }
        return await interleaved("rpc", pairs, work.rounds, progress)
