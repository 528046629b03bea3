"""One thread that belongs to one actor: its plain functions all run there, in their order."""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Protocol, TypeVar, TypeVarTuple

T = TypeVar("T")
Ts = TypeVarTuple("Ts")


class WorkerThread(Protocol):
    """Runs functions one after another."""

    async def run(self, function: Callable[[*Ts], T], *args: *Ts) -> T:
        """Runs ``function`` behind those that were given before. A started function cannot be cancelled."""
        ...

    def close(self) -> None:
        """Ends when the running function has returned; what waits is dropped."""
        ...


class OwnThread:
    """The shipped ``WorkerThread``: a thread that starts with the first function."""

    def __init__(self, name: str) -> None:
        self._executor = ThreadPoolExecutor(max_workers=1, thread_name_prefix=name)

    async def run(self, function: Callable[[*Ts], T], *args: *Ts) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._executor, lambda: function(*args))

    def close(self) -> None:
        self._executor.shutdown(wait=False, cancel_futures=True)
