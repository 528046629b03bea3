"""What is attacked: an actor that notes every value that should not have come through, and who called it."""

import asyncio
import os
from collections.abc import AsyncIterator

import msgspec

from asyncrl.runtime import Actor, endpoint
from tests.unit.runtime.runtime_actors import Block


class Seen(msgspec.Struct):
    """What became of an attack at its target."""

    callers: dict[str, int]
    wrong: list[str]
    unhandled: list[str]


class Target(Actor):
    """Endpoints of every kind with narrow types."""

    concurrency = 0

    def __init__(self) -> None:
        self.callers: dict[str, int] = {}
        self.wrong: list[str] = []
        self.unhandled: list[str] = []
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda loop, context: self.unhandled.append(f"{context.get('message')}: {context.get('exception')!r}"))

    def _note(self, *right: bool) -> None:
        caller = self.context.caller
        self.callers[caller] = self.callers.get(caller, 0) + 1
        if not all(right):
            self.wrong.append(caller)

    @endpoint
    async def add(self, n: int) -> int:
        self._note(type(n) is int)
        return n

    @endpoint(idempotent=True)
    async def named(self, name: str, size: int = 1, *, tags: list[str] | None = None) -> str:
        self._note(type(name) is str, type(size) is int, tags is None or all(type(tag) is str for tag in tags))
        return name * min(max(size, 0), 3)

    @endpoint
    async def many(self, values: list[int]) -> int:
        self._note(all(type(value) is int for value in values))
        return len(values)

    @endpoint
    async def count(self, until: int) -> AsyncIterator[int]:
        self._note(type(until) is int)
        for number in range(min(until, 100)):
            yield number

    @endpoint
    async def endless(self) -> AsyncIterator[bytes]:
        self._note()
        while True:
            yield bytes(100)
            await asyncio.sleep(0)

    @endpoint
    async def hang(self) -> None:
        self._note()
        await asyncio.Event().wait()

    @endpoint(collective=True)
    async def together(self, n: int) -> int:
        self._note(type(n) is int)
        return n

    @endpoint
    def plain(self, n: int) -> int:
        self._note(type(n) is int)
        return n

    @endpoint
    async def block(self, block: Block) -> int:
        self._note(type(block.data) is memoryview)
        return len(block.data)

    @endpoint
    async def descriptors(self) -> int:
        return len(os.listdir("/proc/self/fd"))

    @endpoint
    async def seen(self) -> Seen:
        return Seen(self.callers, self.wrong[:20], self.unhandled[:20])
