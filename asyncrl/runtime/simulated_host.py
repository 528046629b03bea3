"""A machine for simulated runs: the loop's virtual clock, entropy from a seed, files in memory."""

import asyncio
import io
from collections.abc import Callable
from random import Random
from typing import BinaryIO, TypeVar, TypeVarTuple

from asyncrl.runtime.files import StorageFolder
from asyncrl.runtime.own_thread import WorkerThread
from asyncrl.runtime.simulated_files import MemoryFolder

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

EPOCH = 1_750_000_000.0
"""Unix seconds at virtual second 0, about."""
SKEW = 3600.0
"""Seconds by which the wall clock may be wrong, and jump."""
BLOCKING = (1e-5, 0.02)
"""Virtual seconds that a blocking function takes, at least and at most."""


class SimulatedHost:
    """What one process sees of its machine. Everything random comes from ``seed`` and the name of the process.

    ``files`` belong to the machine: hosts that share them see each other's, and they outlive a crash. After ``crash`` nothing
    is written any more.
    """

    def __init__(self, seed: int, process: str = "main", files: dict[str, bytearray] | None = None) -> None:
        self.files: dict[str, bytearray] = {} if files is None else files
        self.crashed = False
        self._random = Random(f"host {seed} {process}")
        self._skew = 0.0

    def clock(self) -> float:
        return asyncio.get_running_loop().time()

    def wall_time(self) -> float:
        # Wall clocks jump, also backwards; nothing may depend on them.
        if self._random.random() < 0.05:
            self._skew = self._random.uniform(-SKEW, SKEW)
        return EPOCH + self._skew + self.clock()

    def entropy(self, size: int) -> bytes:
        return self._random.randbytes(size)

    async def run_blocking(self, function: Callable[[*Ts], T], *args: *Ts) -> T:
        """Runs ``function`` in one go after a drawn time. As on a thread, it runs although its caller has left."""
        loop = asyncio.get_running_loop()
        done: asyncio.Future[T] = loop.create_future()

        def work() -> None:
            try:
                result = function(*args)
            except Exception as error:
                if not done.done():
                    done.set_exception(error)
            else:
                if not done.done():
                    done.set_result(result)

        loop.call_later(self._random.uniform(*BLOCKING), work)
        return await done

    def open_append(self, path: str) -> BinaryIO:
        return _AppendedFile(self, path)

    def own_thread(self, name: str) -> WorkerThread:
        return _InTurn(self)

    def storage(self, path: str) -> StorageFolder:
        return MemoryFolder(path, self.files, lambda: self.crashed)

    def crash(self) -> None:
        """The process is gone; what its code still writes is lost."""
        self.crashed = True


class _InTurn:
    """Functions one after another, each after a drawn time."""

    def __init__(self, host: SimulatedHost) -> None:
        self._host, self._turn = host, asyncio.Lock()

    async def run(self, function: Callable[[*Ts], T], *args: *Ts) -> T:
        async with self._turn:
            return await self._host.run_blocking(function, *args)

    def close(self) -> None:
        """There is no thread."""


class _AppendedFile(io.BytesIO):
    """Appends to a file in memory."""

    def __init__(self, host: SimulatedHost, path: str) -> None:
        super().__init__()
        self._host, self._content = host, host.files.setdefault(path, bytearray())

    def write(self, data: "bytes | bytearray | memoryview", /) -> int:  # type: ignore[override]
        if not self._host.crashed:
            self._content += data
        return len(data)
