"""How processes that share nothing yet exchange addresses: a small key-value store."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, ClassVar, Protocol, TypeVar

from asyncrl.errors import ActorDied
from asyncrl.runtime.actor import Actor, endpoint
from asyncrl.runtime.messages import ActorAddress
from asyncrl.runtime.retries import Retries

if TYPE_CHECKING:
    from asyncrl.runtime.system import ActorSystem

R = TypeVar("R")

LONGEST_PAUSE = 1.0
"""Seconds between two tries to reach a board; an attempt to connect where nobody listens takes two by itself."""


class Rendezvous(Protocol):
    """Write-once use is expected; a later ``set`` replaces."""

    async def set(self, key: str, value: bytes) -> None:
        """Stores ``value`` and wakes those who wait for ``key``."""
        ...

    async def get(self, key: str) -> bytes | None:
        """The value, None when there is none yet."""
        ...

    async def wait(self, key: str) -> bytes:
        """The value, once there is one. The caller bounds it with ``asyncio.timeout``."""
        ...


class MemoryRendezvous:
    """For systems that share a process."""

    def __init__(self) -> None:
        self._values: dict[str, bytes] = {}
        self._waiters: dict[str, list[asyncio.Future[bytes]]] = {}

    async def set(self, key: str, value: bytes) -> None:
        self._values[key] = value
        for waiter in self._waiters.pop(key, []):
            if not waiter.done():
                waiter.set_result(value)

    async def get(self, key: str) -> bytes | None:
        return self._values.get(key)

    async def wait(self, key: str) -> bytes:
        if key in self._values:
            return self._values[key]
        waiter: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self._waiters.setdefault(key, []).append(waiter)
        return await waiter


BOARD = "rendezvous"
"""Name of the actor that keeps the values."""


class Board(Actor):
    """A rendezvous for whoever can reach its process: spawn it under the name ``rendezvous`` at an address that all know."""

    concurrency: ClassVar[int] = 0

    def __init__(self) -> None:
        self._values = MemoryRendezvous()

    @endpoint(idempotent=True)
    async def set(self, key: str, value: bytes) -> None:
        """See ``Rendezvous.set``."""
        await self._values.set(key, value)

    @endpoint(idempotent=True)
    async def get(self, key: str) -> bytes | None:
        """See ``Rendezvous.get``."""
        return await self._values.get(key)

    @endpoint(idempotent=True)
    async def wait(self, key: str) -> bytes:
        """See ``Rendezvous.wait``."""
        return await self._values.wait(key)


class AddressRendezvous:
    """A rendezvous at a plain address: the ``Board`` of a process that was started at ``endpoint``, as "tcp://10.0.0.1:29600".

    The board may start later than those who look for it: a call waits for it until the ``asyncio.timeout`` around it. It raises
    ActorDied when the board has said goodbye or is known to be dead, and when its own system is closed.
    """

    def __init__(self, system: ActorSystem, endpoint: str, process: str, role: str = "") -> None:
        address = ActorAddress(process, endpoint, BOARD, role=role)
        self._board = system.ref(address, Board).with_deadline(0.0)

    async def set(self, key: str, value: bytes) -> None:
        await self._once_there(lambda: self._board.call(Board.set, key, value))

    async def get(self, key: str) -> bytes | None:
        return await self._once_there(lambda: self._board.call(Board.get, key))

    async def wait(self, key: str) -> bytes:
        return await self._once_there(lambda: self._board.call(Board.wait, key))

    async def _once_there(self, call: Callable[[], Awaitable[R]]) -> R:
        retries = Retries(LONGEST_PAUSE)
        while True:
            try:
                return await call()
            except ActorDied as error:
                # Where a connection broke, or nobody listens yet, another try may reach the board; no other end is news to come.
                if not error.lost:
                    raise
            await retries.pause()
