"""Actors whose ends are told to them; importable by child processes."""

import asyncio
import os
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

from asyncrl.errors import ActorError
from asyncrl.runtime import Actor, ActorAddress, endpoint
from tests.unit.runtime.runtime_actors import Counter, Slow


class Mortal(Slow):
    """Remembers nothing of its earlier lives, and says which one it is."""

    @endpoint
    async def life(self) -> tuple[int, int]:
        """Its generation and its pid."""
        return self.context.system.address(self.context.name).generation, os.getpid()

    @endpoint
    async def add(self, n: int) -> int:
        """As a counter that has counted nothing."""
        return n

    @endpoint
    async def leave(self, code: int) -> None:
        print(f"leaving with {code} in life {(await self.life())[0]}", flush=True)
        os._exit(code)


class Starter(Mortal):
    """Its first life starts; the later ones do not while ``path`` is there."""

    def __init__(self, path: str) -> None:
        super().__init__()
        self.path = Path(path)

    async def on_start(self) -> None:
        if (await self.life())[0] and self.path.exists():
            print("cannot start again", flush=True)
            sys.exit(7)


class Pusher(Actor):
    """Counts in another process until that refuses."""

    @endpoint
    async def push(self, address: ActorAddress, path: str) -> AsyncIterator[str]:
        """One item when the first count was accepted; the refusal is written to ``path``."""
        ref = self.context.system.ref(address, Counter)
        await ref.call(Counter.add, 1)
        yield "counting"
        try:
            while True:
                await ref.call(Counter.add, 1)
        except ActorError as error:
            await self.context.host.run_blocking(Path(path).write_text, str(error))


class Founder(Actor):
    """Life ``life`` starts a process of its own, says so to ``path`` with its pid and that one's, and does not come up."""

    def __init__(self, path: str, life: int) -> None:
        self.path, self.life = Path(path), life

    async def on_start(self) -> None:
        if self.context.system.address(self.context.name).generation == self.life:
            own = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])  # noqa: ASYNC220
            self.path.write_text(f"{os.getpid()} {own.pid}")
            await asyncio.Event().wait()
