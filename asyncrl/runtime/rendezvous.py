"""How processes that share nothing yet exchange addresses: a small key-value store."""

import asyncio
from typing import Protocol


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
