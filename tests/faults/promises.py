"""How long a fault may take to be seen, and how long it took."""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator

TABLE: list[tuple[str, float, float]] = []
"""(what, promised seconds, seconds that it took) of every promise that was put to the test."""
LENIENCE = 3.0


@contextlib.asynccontextmanager
async def promised(seconds: float, what: str) -> AsyncIterator[None]:
    """A block that ends within ``seconds``, by the promise; the machine may be busy, so three times that is tolerated."""
    began = time.perf_counter()
    async with asyncio.timeout(LENIENCE * seconds):
        yield
    TABLE.append((what, seconds, time.perf_counter() - began))


def lines() -> list[str]:
    """The table as text."""
    return [f"{took * 1000:9.1f} ms of {promise * 1000:7.0f} ms promised  {what}" for what, promise, took in TABLE]
