"""Two ends of a connection that share memory, without sockets: what each process would have of it."""

import asyncio
import contextlib
import gc
from collections.abc import AsyncIterator, Sequence

import msgspec

from asyncrl.runtime import RealHost
from asyncrl.runtime.memory import MemoryLink, link_pair
from asyncrl.runtime.shared_memory import SharedMemory
from asyncrl.runtime.sharing import SharedLink
from asyncrl.runtime.sharing_messages import SharingMessage, marked

HEADER = msgspec.msgpack.encode(["call", 1])
MIB = 1 << 20


class End:
    """One end: what its receiver got and was told, and the pool of its process."""

    admitted = True

    def __init__(self, link: MemoryLink, budget: int) -> None:
        self.memory = SharedMemory(RealHost(), budget)
        self.bare = link
        self.link = SharedLink(self.memory, "")
        self.inbox: list[Sequence[memoryview]] = []
        self.lost_causes: list[str] = []
        self.broken_reasons: list[str] = []
        link.receiver = self.link

    def received(self, frames: Sequence[memoryview]) -> None:
        self.inbox.append(frames)

    def lost(self, cause: str) -> None:
        self.lost_causes.append(cause)

    def refused(self, cause: str) -> None:
        self.lost_causes.append(cause)

    def broken(self, reason: str) -> None:
        self.broken_reasons.append(reason)

    def say(self, message: SharingMessage | bytes, *behind: bytes) -> None:
        """Sends something past the link, as a peer that lies would."""
        self.bare.send([message if isinstance(message, bytes) else marked(message), *behind])

    def take(self) -> list[memoryview]:
        """The buffers of the message that came first."""
        return list(self.inbox.pop(0)[1:])


async def settled() -> None:
    """Everything that was said has been heard, and every segment that was asked for is there."""
    for _ in range(4):
        while len(asyncio.all_tasks()) > 1:
            await asyncio.to_thread(gc.get_count)
        for _ in range(6):
            await asyncio.sleep(0)


class Ends:
    """``calls`` was connected, ``serves`` has accepted."""

    def __init__(self, budget: int, served_budget: int) -> None:
        one, two = link_pair(asyncio.get_running_loop())
        self.calls, self.serves = End(one, budget), End(two, served_budget)
        self.calls.link.connected(one, self.calls)
        self.serves.link.accepted(two, self.serves)

    async def greet(self) -> None:
        """The first answer: from now on the caller's end says that it is able."""
        self.serves.link.send([HEADER])
        await settled()
        self.calls.inbox.clear()

    async def warm(self, size: int, count: int = 1) -> None:
        """Large messages both ways until ``count`` segments for ``size`` bytes are free at both ends."""
        for sender, receiver in ((self.calls, self.serves), (self.serves, self.calls)):
            while sender.memory.stats().free_segments < count:
                for _ in range(count):
                    sender.link.send([HEADER, bytes(size)])
                await settled()
                receiver.inbox.clear()
                await settled()


@contextlib.asynccontextmanager
async def connected(budget: int = 64 * MIB, served_budget: int | None = None) -> AsyncIterator[Ends]:
    """Two ends that know each other; everything is gone at the end of the block."""
    ends = Ends(budget, budget if served_budget is None else served_budget)
    await ends.greet()
    try:
        yield ends
    finally:
        ends.calls.link.close()
        ends.serves.link.close()
        await ends.calls.memory.close()
        await ends.serves.memory.close()
