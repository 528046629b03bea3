"""``asyncrl bench rpc``: typed calls to actors in child processes, against pyzmq with echo processes.

latency: p50 of a whole call with a dict of about 100 bytes. Reference: REQ/REP, blocking, the same bytes already encoded.
calls_per_second: the same call with 256 in flight. Reference: ``zmq.asyncio``, MessagePack at the caller alone.
fan_out: one such call to each of 16 processes, all awaited. Reference: the same over ``zmq.asyncio``.
tensor_echo: a float32 column of 16 MiB there and back, bytes of both ways over the wall time. Reference: DEALER/ROUTER,
blocking, frames without a copy.

With ``--peer-python``, each of them against Ray, xoscar and dask in that interpreter, named ``..._vs_ray`` and so on.
All of it over ipc, then, named ``tcp_...``, over tcp on the loopback. What a child process costs is in ``processes.py``.
"""

import asyncio
import contextlib
import tempfile
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import msgspec
import numpy as np
import zmq

from asyncrl.bench.foreign import run_python
from asyncrl.bench.job import Echo, Message, job
from asyncrl.bench.processes import processes
from asyncrl.bench.reference import TCP, AsyncClient, async_client, plain_client
from asyncrl.bench.report import Figure, Report
from asyncrl.bench.rounds import Pair, Progress, interleaved, median_microseconds, megabytes_per_second
from asyncrl.runtime.host import remove_folder
from asyncrl.runtime.ref import ActorRef
from asyncrl.runtime.security import private_folder
from asyncrl.runtime.tasks import all_of, running
from asyncrl.tensors.wire import Column

MESSAGE: Message = {"method": "echo", "payload": "x" * 72, "id": 123}
SAMPLE_SECONDS = 60.0
PEERS = ("xoscar", "dask", "ray")


@dataclass(frozen=True, slots=True)
class RpcWork:
    """How much is done: of calls in one round, of tensors in one round (``tensor_bytes`` each)."""

    rounds: int = 7
    latency_calls: int = 800
    in_flight: int = 256
    calls_each: int = 12
    fan_out: int = 16
    fan_outs: int = 60
    tensors: int = 6
    tensor_bytes: int = 16 << 20
    spawns: int = 5
    idle_seconds: float = 10.0
    peer_python: str | None = None


class Ours:
    """Calls through the runtime."""

    def __init__(self, echoes: Sequence[ActorRef[Echo]], work: RpcWork) -> None:
        self._echoes, self._echo, self._work = echoes, echoes[0], work
        self._column = Column.dense(np.ones(work.tensor_bytes // 4, np.float32))

    async def latency(self) -> float:
        """Microseconds."""
        return await median_microseconds(self._work.latency_calls, self._call)

    async def calls_per_second(self) -> float:
        """Calls a second."""
        return await rate_in_flight(self._work, partial(self._call, 0))

    async def fan_out(self) -> float:
        """Microseconds."""
        calls = [partial(echo.call, Echo.message, MESSAGE) for echo in self._echoes]
        return await median_microseconds(self._work.fan_outs, lambda index: all_of(calls))

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

    def __init__(self, small: "zmq.Socket[bytes]", large: "zmq.Socket[bytes]", many: Sequence[AsyncClient], work: RpcWork) -> None:
        self._small, self._large, self._many, self._work = small, large, many, work
        self._encoded = msgspec.msgpack.encode(MESSAGE)
        self._tensor = np.ones(work.tensor_bytes // 4, np.float32).tobytes()

    async def latency(self) -> float:
        """Microseconds."""
        return await median_microseconds(self._work.latency_calls, self._round_trip)

    async def calls_per_second(self) -> float:
        """Calls a second."""
        async with asyncio.timeout(SAMPLE_SECONDS), running(self._many[0].read):
            return await rate_in_flight(self._work, partial(self._call, self._many[0]))

    async def fan_out(self) -> float:
        """Microseconds."""
        calls = [partial(self._call, client) for client in self._many]
        async with asyncio.timeout(SAMPLE_SECONDS), running(*[client.read for client in self._many]):
            return await median_microseconds(self._work.fan_outs, lambda index: all_of(calls))

    async def tensor_echo(self) -> float:
        """MB/s, both ways."""
        return await megabytes_per_second(2 * self._work.tensors * self._work.tensor_bytes, self._tensors)

    async def _round_trip(self, index: int) -> object:
        self._small.send(self._encoded)
        return self._small.recv()

    async def _call(self, client: AsyncClient) -> object:
        return msgspec.msgpack.decode(await client.call(msgspec.msgpack.encode(MESSAGE)))

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
    """Measure all figures over ipc, then over tcp."""
    work = work or RpcWork()
    figures: dict[str, Figure] = {}
    for prefix, interface in (("", ""), ("tcp_", "127.0.0.1")):
        report = await over(interface, prefix, work, progress)
        figures |= report.figures
    progress("rpc: processes")
    async with job() as system:
        figures |= await processes(system, work.spawns, work.idle_seconds)
    if work.peer_python:
        for peer in PEERS:
            progress(f"rpc: {peer}")
            theirs = await peer_figures(work.peer_python, peer, work)
            figures |= {f"{name}_vs_{peer}": Figure.of(figures[name].value, figures[name].unit, value) for name, value in theirs.items()}
    return Report("rpc", figures)


async def over(interface: str, prefix: str, work: RpcWork, progress: Progress) -> Report:
    """The figures of one transport: ipc, or tcp ports of ``interface``."""
    async with contextlib.AsyncExitStack() as stack:
        folder = private_folder()
        stack.callback(remove_folder, folder)

        def at(name: str) -> str:
            return TCP if interface else f"ipc://{folder}/{name}"

        small = stack.enter_context(plain_client("small", at("small")))
        large = stack.enter_context(plain_client("large", at("large")))
        many = [stack.enter_context(async_client(at(f"many{number}"))) for number in range(work.fan_out)]
        system = await stack.enter_async_context(job(interface))
        echoes = [await system.spawn(Echo, name=f"echo-{number}", process=f"echo-{number}") for number in range(work.fan_out)]
        ours, reference = Ours(echoes, work), Reference(small, large, many, work)
        pairs = {
            f"{prefix}latency": Pair("us", ours.latency, reference.latency),
            f"{prefix}calls_per_second": Pair("calls/s", ours.calls_per_second, reference.calls_per_second),
            f"{prefix}fan_out": Pair("us", ours.fan_out, reference.fan_out),
            f"{prefix}tensor_echo": Pair("MB/s", ours.tensor_echo, reference.tensor_echo),
        }
        return await interleaved("rpc", pairs, work.rounds, progress)


async def peer_figures(python: str, peer: str, work: RpcWork) -> dict[str, float]:
    """A peer on the same work, by figure. Raises BenchFailed when the interpreter does not have it."""
    script = Path(__file__).with_name("peer_rpc.py")
    sizes = (work.latency_calls, work.in_flight, work.calls_each, work.fan_out, work.fan_outs, work.tensors, work.tensor_bytes)
    with tempfile.TemporaryDirectory() as folder:
        # -P: the script's own folder has modules that are named as those of the standard library.
        output = await run_python(Path(folder), [python, "-P", str(script), peer, *map(str, sizes)], 1)
    return msgspec.json.decode(output.splitlines()[-1], type=dict[str, float])
