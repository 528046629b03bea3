"""A process under attack, and what must hold of it meanwhile and afterwards."""

import asyncio
import contextlib
import itertools
import time
from collections.abc import Awaitable, Callable
from functools import partial

import psutil

from asyncrl.runtime import ActorRef, ActorSystem
from tests.faults.conftest import PeerProcess
from tests.fuzz.target import Seen, Target

ACTORS = {"target": "tests.fuzz.target:Target"}
JOB_KEY = b"k" * 32
MB = 1 << 20
GROWTH = 50 * MB
"""Bytes that an attacked process may grow by."""


class Fort:
    """The attacked process, and a caller of it that is entitled."""

    def __init__(self, peer: PeerProcess, caller: ActorSystem) -> None:
        self.peer, self.endpoint = peer, peer.address.endpoint
        self.target: ActorRef[Target] = caller.ref(peer.address, Target).with_deadline(20)
        self.latencies: list[float] = []
        self.served = asyncio.Event()
        self.most = 0

    def resident(self) -> int:
        """Bytes that the process holds."""
        held = int(psutil.Process(self.peer.pid).memory_info().rss)
        self.most = max(self.most, held)
        return held

    async def serves(self) -> None:
        """Calls until it is cancelled; every result is right."""
        for number in itertools.count():
            began = time.perf_counter()
            assert await self.target.call(Target.add, number) == number
            assert await self.target.call(Target.named, "a", 2, tags=["t"]) == "aa"
            assert [item async for item in self.target.stream(Target.count, 3)] == [0, 1, 2]
            self.latencies.append((time.perf_counter() - began) / 3)
            self.served.set()
            self.resident()
            await asyncio.sleep(0.02)

    async def stands(self, *attacks: Callable[[], None]) -> Seen:
        """As ``stands_while``, during attacks that run on threads."""
        return await self.stands_while(*[partial(asyncio.to_thread, attack) for attack in attacks])

    async def stands_while(self, *attacks: Callable[[], Awaitable[None]]) -> Seen:
        """Serves its caller during the attacks, does not grow, and is as sound as before after them."""
        await self.target.call(Target.add, 1)
        before = self.resident()
        serving = asyncio.ensure_future(self.serves())
        try:
            await asyncio.gather(*[attack() for attack in attacks])
            # A short attack may be over before the first call, which began with it, has its answer.
            async with asyncio.timeout(20):
                await self.served.wait()
        finally:
            serving.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await serving
        assert self.peer.process.poll() is None
        seen = await self.target.call(Target.seen)
        self.resident()
        print(f"grew by {(self.most - before) / MB:.0f} MB; a call took {1000 * max(self.latencies):.1f} ms at most")
        assert not seen.wrong
        assert not seen.unhandled
        assert self.most - before < GROWTH
        return seen
