"""Actors that the fault tests host, importable by child processes."""

import asyncio
import inspect
import itertools
import os
import subprocess
import sys
import time
import typing
from collections.abc import AsyncIterator
from typing import Any, Literal, TypeVar

import psutil

from asyncrl import errors
from asyncrl.errors import ActorDied, AsyncRLError
from asyncrl.runtime import Actor, ActorAddress, endpoint

VALUES: dict[Any, Any] = {str: "a word", int: 3, float: 1.5, object: 7, tuple[str, ...]: ("a", "b")}


def sample_of(kind: type[AsyncRLError]) -> AsyncRLError:
    """An error of a class, with a value for everything that its constructor takes."""
    if all("__init__" not in vars(base) for base in kind.__mro__ if issubclass(base, AsyncRLError)):
        return kind(f"some {kind.__name__}")
    hints = typing.get_type_hints(kind.__init__)
    return kind(**{name: VALUES[hints[name]] for name in inspect.signature(kind).parameters})


SAMPLES: dict[str, AsyncRLError] = {
    name: sample_of(kind) for name, kind in vars(errors).items() if isinstance(kind, type) and issubclass(kind, AsyncRLError)
}
"""One error of each class of the tree."""

T = TypeVar("T")
Ending = Literal["exit", "kill", "raise", "leave"]


def end(how: Ending) -> None:
    """Ends this process, or this call, at once."""
    if how == "exit":
        os._exit(7)
    if how == "kill":
        os.kill(os.getpid(), 9)
    if how == "leave":
        sys.exit(3)
    raise RuntimeError("broke")


class Worker(Actor):
    """Does all that a callee can do to its callers; serves any number of calls at a time."""

    concurrency = 0

    def __init__(self) -> None:
        self.started = asyncio.Event()
        self.cancelled = asyncio.Event()
        self.release = asyncio.Event()
        self.effects: dict[str, int] = {}
        self.produced = 0

    @endpoint
    async def echo(self, value: int) -> int:
        return value

    @endpoint
    async def anything(self, value: Any) -> bool:
        return value is not None

    @endpoint
    async def bytes_of(self, size: int) -> bytes:
        return bytes(size)

    @endpoint
    async def length(self, data: bytes) -> int:
        return len(data)

    @endpoint
    async def pid(self) -> int:
        return os.getpid()

    @endpoint
    async def resident(self) -> int:
        return int(psutil.Process().memory_info().rss)

    @endpoint
    async def hang(self) -> None:
        self.started.set()
        try:
            await asyncio.Event().wait()
        finally:
            self.cancelled.set()

    @endpoint
    async def ask_to_hang(self, address: ActorAddress) -> None:
        await self.context.system.ref(address, Worker).watched(600).call(Worker.hang)

    @endpoint
    async def has_started(self) -> bool:
        await self.started.wait()
        return True

    @endpoint
    async def was_cancelled(self) -> bool:
        await self.cancelled.wait()
        return True

    @endpoint
    async def wait_release(self, value: int) -> int:
        self.started.set()
        await self.release.wait()
        return value

    @endpoint
    async def let_go(self) -> None:
        self.release.set()

    @endpoint
    async def effect(self, key: str) -> int:
        self.effects[key] = self.effects.get(key, 0) + 1
        return self.effects[key]

    @endpoint(idempotent=True)
    async def idempotent_effect(self, key: str) -> int:
        return await self.effect(key)

    @endpoint
    async def all_effects(self) -> dict[str, int]:
        return self.effects

    @endpoint
    def block(self, seconds: float) -> float:
        time.sleep(seconds)
        return seconds

    @endpoint
    async def stall(self, seconds: float) -> float:
        """Holds the event loop itself."""
        time.sleep(seconds)  # noqa: ASYNC251
        return seconds

    @endpoint
    async def fail(self, message: str) -> None:
        raise RuntimeError(message)

    @endpoint
    async def fail_deeply(self, depth: int) -> None:
        if depth:
            await self.fail_deeply(depth - 1)
        raise RuntimeError("x" * 1_000_000)

    @endpoint
    async def fail_as(self, kind: str) -> None:
        raise SAMPLES[kind]

    @endpoint
    async def made(self) -> int:
        return self.produced

    @endpoint
    async def items(self, size: int, count: int) -> AsyncIterator[bytes]:
        try:
            for _ in range(count):
                self.produced += 1
                yield bytes(size)
        finally:
            self.cancelled.set()

    @endpoint
    async def numbers(self, count: int) -> AsyncIterator[int]:
        for number in range(count):
            yield number

    @endpoint
    async def items_and_end(self, count: int, how: Ending) -> AsyncIterator[int]:
        for number in range(count):
            yield number
        end(how)

    @endpoint
    async def end_now(self, how: Ending) -> None:
        end(how)

    @endpoint
    async def grandchild(self) -> int:
        """A process of this actor's own that knows nothing of lifelines."""
        child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])  # noqa: ASYNC220
        return child.pid


class Ledger(Actor):
    """Remembers who wrote what, in its order."""

    concurrency = 0

    def __init__(self) -> None:
        self.written: list[tuple[str, int]] = []
        self.more = asyncio.Condition()

    @endpoint
    async def write(self, generation: int, number: int) -> None:
        async with self.more:
            self.written.append((f"{self.context.caller}#{generation}", number))
            self.more.notify_all()

    @endpoint
    async def has_lines_of(self, generation: int, count: int) -> None:
        async with self.more:
            await self.more.wait_for(lambda: sum(who.endswith(f"#{generation}") for who, _ in self.written) >= count)

    @endpoint
    async def read(self) -> list[tuple[str, int]]:
        return self.written


class Writer(Actor):
    """Writes into a ledger of another process, one line after another, until it is refused."""

    def __init__(self) -> None:
        self.ended = asyncio.Event()
        self.outcome = ""

    @endpoint
    async def begin(self, ledger: ActorAddress, generation: int) -> None:
        self.context.background(self.write_on, ledger, generation, name="writer")

    async def write_on(self, ledger: ActorAddress, generation: int) -> None:
        """Writes, by new connections when one is lost, until it is refused."""
        ref = self.context.system.ref(ledger, Ledger).with_deadline(5)
        for number in itertools.count():
            try:
                await ref.call(Ledger.write, generation, number)
            except ActorDied:
                # It froze: its connection is lost, the ledger is not.
                continue
            except AsyncRLError as error:
                self.outcome = f"{type(error).__name__}: {error}"
                break
        self.ended.set()

    @endpoint
    async def how_it_ended(self) -> str:
        await self.ended.wait()
        return self.outcome


class EndsInStart(Actor):
    """Ends in ``on_start``, after its last words."""

    def __init__(self, how: Ending) -> None:
        self.how = how

    async def on_start(self) -> None:
        for number in range(5):
            print(f"last words {number}", flush=True)
        end(self.how)


class RaisesInStop(Actor):
    """Does not stop cleanly."""

    @endpoint
    async def echo(self, value: int) -> int:
        return value

    async def on_stop(self) -> None:
        raise RuntimeError("cannot stop cleanly")


async def into(seen: list[T], items: AsyncIterator[T]) -> None:
    """Appends the items of a stream as they come."""
    async for item in items:
        seen.append(item)
