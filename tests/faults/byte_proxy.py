"""A TCP proxy that hurts the stream of bytes between a caller and a callee: half-open, frozen, cut, trickling, corrupt."""

import asyncio
import contextlib
import random
from types import TracebackType
from typing import Self

import msgspec

CHUNK = 65536


class Way(msgspec.Struct):
    """How the bytes of one direction are treated; may be changed at any time, and holds from the next read on.

    ``swallow`` takes bytes and forwards none, as a half-open connection does. ``trickle`` forwards so many bytes at a time,
    ``pause`` seconds apart. ``corrupt`` is the share of chunks in which one byte is changed.
    """

    swallow: bool = False
    trickle: int = 0
    pause: float = 0.001
    corrupt: float = 0.0
    passed: int = 0
    swallowed: int = 0


class ByteProxy:
    """Listens at a free port of the loopback and connects each client to ``target`` ("tcp://127.0.0.1:PORT")."""

    def __init__(self, target: str, seed: int = 0) -> None:
        host, _, port = target.removeprefix("tcp://").rpartition(":")
        self._target = (host, int(port))
        self._random = random.Random(seed)
        self.to_callee, self.to_caller = Way(), Way()
        self.connections = 0
        self.endpoint = ""
        self._open: dict[asyncio.Task[None], list[asyncio.StreamWriter]] = {}
        self._flowing = asyncio.Event()
        self._flowing.set()
        self._server: asyncio.Server | None = None

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.endpoint = f"tcp://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        await self.vanish()

    async def vanish(self) -> None:
        """Cuts everything and listens no more; harmless twice."""
        if self._server is None:
            return
        self._server.close()
        self._server = None
        self.cut()
        self._flowing.set()
        if self._open:
            await asyncio.wait(list(self._open))

    def cut(self) -> None:
        """Resets every connection that is open now."""
        for writers in self._open.values():
            for writer in writers:
                writer.transport.abort()

    def freeze(self) -> None:
        """Holds all bytes back: a network that is down. None is lost."""
        self._flowing.clear()

    def thaw(self) -> None:
        """Lets the bytes go on."""
        self._flowing.set()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self.connections += 1
        self._open[task] = [writer]
        try:
            there = await asyncio.open_connection(*self._target)
            self._open[task].append(there[1])
            async with asyncio.TaskGroup() as pumps:
                pumps.create_task(self._pump(reader, there[1], self.to_callee))
                pumps.create_task(self._pump(there[0], writer, self.to_caller))
        except OSError:
            return
        finally:
            for each in self._open.pop(task):
                each.transport.abort()

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, way: Way) -> None:
        """One direction until either end closes; then the other direction is closed too."""
        with contextlib.suppress(ConnectionError):
            while data := await reader.read(CHUNK):
                await self._flowing.wait()
                if way.swallow:
                    way.swallowed += len(data)
                    continue
                await self._forward(self._hurt(data, way), writer, way)
        writer.close()

    def _hurt(self, data: bytes, way: Way) -> bytes:
        if way.corrupt and self._random.random() < way.corrupt:
            changed = bytearray(data)
            changed[self._random.randrange(len(data))] ^= self._random.randint(1, 255)
            return bytes(changed)
        return data

    async def _forward(self, data: bytes, writer: asyncio.StreamWriter, way: Way) -> None:
        step = way.trickle or len(data)
        for start in range(0, len(data), step):
            writer.write(data[start : start + step])
            await writer.drain()
            way.passed += min(step, len(data) - start)
            if way.trickle:
                await asyncio.sleep(way.pause)
