"""Actors and helpers that the runtime's tests share; importable by child processes."""

import asyncio
import contextlib
import functools
import os
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import zmq

from asyncrl.errors import ActorDied, Fenced, UnknownRow
from asyncrl.runtime import Actor, ActorAddress, endpoint, register_codec


@dataclass(frozen=True, slots=True)
class Block:
    """A registered class that is a dataclass."""

    name: str
    data: Any


def _pack(block: Block) -> tuple[Any, list[Any]]:
    return block.name, [block.data]


def _unpack(head: Any, frames: list[memoryview]) -> Block:
    (frame,) = frames
    return Block(head, frame)


register_codec(Block, _pack, _unpack)


class Parcel(msgspec.Struct):
    """Registered objects inside a struct."""

    blocks: dict[str, Block]
    first: Block | None = None
    note: str = "none"


class Counter(Actor):
    """Counts; the plainest actor."""

    def __init__(self, start: int = 0) -> None:
        self.total = start
        self.stopped: list[str] = []

    @endpoint
    async def add(self, n: int) -> int:
        self.total += n
        return self.total

    @endpoint
    def repeat(self, text: str = "a", *, times: int = 2) -> list[str]:
        return [text] * times

    @endpoint
    async def fail(self, message: str) -> None:
        raise RuntimeError(message)

    @endpoint
    async def fenced(self) -> None:
        raise Fenced("u1", "lease 1", "lease 2")

    @endpoint
    async def unknown_row(self) -> int:
        raise UnknownRow("k", "train", 3)

    @endpoint
    async def pid(self) -> int:
        return os.getpid()

    @endpoint(collective=True)
    async def together(self, value: int) -> int:
        self.total += value
        return self.total

    async def unmarked(self) -> int:
        return 1


class Slow(Actor):
    """Waits, streams, and remembers how its calls ended."""

    concurrency = 0

    def __init__(self) -> None:
        self.cancelled = asyncio.Event()
        self.started = asyncio.Event()
        self.produced = 0
        self.release = asyncio.Event()

    @endpoint
    async def hang(self) -> None:
        self.started.set()
        try:
            await asyncio.Event().wait()
        finally:
            self.cancelled.set()

    @endpoint
    async def was_cancelled(self) -> bool:
        await self.cancelled.wait()
        return True

    @endpoint
    async def has_started(self) -> bool:
        await self.started.wait()
        return True

    @endpoint
    async def made(self) -> int:
        return self.produced

    @endpoint
    async def let_go(self) -> None:
        self.release.set()

    @endpoint
    async def wait_release(self) -> str:
        self.started.set()
        await self.release.wait()
        return "released"

    @endpoint
    async def count(self, until: int) -> AsyncIterator[int]:
        try:
            for number in range(until):
                self.produced += 1
                yield number
        finally:
            self.cancelled.set()

    @endpoint
    async def broken(self) -> AsyncIterator[int]:
        yield 1
        raise RuntimeError("stream broke")

    @endpoint
    async def steps(self, pauses: Sequence[float]) -> int:
        for pause in pauses:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(pause):
                    await asyncio.Event().wait()
            self.context.progress()
        return len(pauses)


class Postman(Actor):
    """Echoes what carries buffers."""

    @endpoint
    async def echo(self, block: Block) -> Block:
        return block

    @endpoint
    async def many(self, blocks: list[Block]) -> dict[str, Block]:
        return {block.name: block for block in blocks}

    @endpoint
    async def parcel(self, parcel: Parcel) -> Parcel:
        return parcel

    @endpoint
    async def pieces(self, block: Block, size: int) -> AsyncIterator[Block]:
        view = memoryview(block.data)
        for start in range(0, len(view), size):
            yield Block(block.name, view[start : start + size])

    @endpoint
    async def maybe(self, block: Block | None = None, *, other: list[Block] | None = None) -> int:
        return (block is not None) + len(other or [])


class Diary(Actor):
    """Keeps the order of what it was told."""

    def __init__(self) -> None:
        self.seen: list[int] = []

    @endpoint
    async def note(self, n: int) -> None:
        self.seen.append(n)

    @endpoint
    async def read(self) -> list[int]:
        return self.seen


class Broken(Actor):
    """Does not start."""

    async def on_start(self) -> None:
        print("the last words of Broken", flush=True)
        raise RuntimeError("cannot start")


class Exits(Actor):
    """Leaves from its constructor."""

    def __init__(self, code: int) -> None:
        print("about to exit", flush=True)
        os._exit(code)


class Never(Actor):
    """Never becomes ready."""

    async def on_start(self) -> None:
        await asyncio.Event().wait()


class Graceful(Actor):
    """Writes a file when it is stopped."""

    def __init__(self, path: str) -> None:
        self.path = path

    async def on_stop(self) -> None:
        await self.context.host.run_blocking(Path(self.path).write_text, "stopped")


class Caller(Actor):
    """Calls another process."""

    @endpoint
    async def relay(self, address: ActorAddress, n: int) -> int:
        return await self.context.system.ref(address, Counter).call(Counter.add, n)

    @endpoint
    async def relay_again(self, address: ActorAddress, n: int) -> int:
        """As ``relay``, once more when the first try was cut off."""
        try:
            return await self.relay(address, n)
        except ActorDied:
            return await self.relay(address, n)

    @endpoint
    async def find(self, name: str) -> ActorAddress:
        return (await self.context.system.lookup(name, Counter)).address

    @endpoint
    async def environment(self, names: list[str]) -> dict[str, str]:
        return {name: os.environ[name] for name in names if name in os.environ}

    @endpoint
    async def loads_torch(self) -> bool:
        import sys

        return "torch" in sys.modules or "numpy" in sys.modules


@functools.cache
def start_zero_copy() -> None:
    """pyzmq keeps one thread and a context of its own for buffers that were sent without a copy; they stay for ever."""
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    with context.socket(zmq.PUSH) as push, context.socket(zmq.PULL) as pull:
        pull.bind("inproc://warm")
        push.connect("inproc://warm")
        push.send(b"x" * 200_000, copy=False)
        pull.recv()
    context.term()


def open_descriptors() -> list[str]:
    """What this process's file descriptors point to, without the one that lists them."""
    start_zero_copy()
    found = []
    for number in os.listdir("/proc/self/fd"):
        with contextlib.suppress(FileNotFoundError):
            found.append(os.readlink(f"/proc/self/fd/{number}").split(":")[0])
    return sorted(found)
