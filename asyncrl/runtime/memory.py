"""Links inside one process: a deque and a scheduled drain, no sockets."""

import asyncio
from collections import deque
from collections.abc import Callable, Sequence

from asyncrl.errors import Undeliverable
from asyncrl.runtime.transport import CallingReceiver, Frames, Link, Receiver


class MemoryLink:
    """One end of a pair. Buffers are shared with the sender, read-only."""

    role = ""
    tells = True
    state = "connected in memory, no answer to the hello"

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._inbox: deque[Sequence[memoryview]] = deque()
        self._scheduled = False
        self.receiver: Receiver | None = None
        self.other: MemoryLink | None = None
        self.closed = False

    def send(self, frames: Frames) -> None:
        if self.other is not None:
            self.other._deliver([memoryview(frame).toreadonly() for frame in frames])

    def _deliver(self, frames: Sequence[memoryview]) -> None:
        if self.closed:
            return
        self._inbox.append(frames)
        if not self._scheduled:
            self._scheduled = True
            self._loop.call_soon(self._drain)

    def _drain(self) -> None:
        self._scheduled = False
        for _ in range(len(self._inbox)):
            if not self._inbox or self.receiver is None:
                return
            self.receiver.received(self._inbox.popleft())
        if self._inbox and not self._scheduled:
            self._scheduled = True
            self._loop.call_soon(self._drain)

    def close(self, linger: float = 0.0) -> None:
        if self.closed:
            return
        self.closed = True
        self._inbox.clear()
        other, self.other = self.other, None
        if other is not None:
            other.other = None
            self._loop.call_soon(other._abandoned)

    def _abandoned(self) -> None:
        # What was sent before the other end closed still arrives first.
        self._drain()
        if not self.closed and self.receiver is not None:
            self.receiver.lost("connection closed")


def link_pair(loop: asyncio.AbstractEventLoop) -> tuple[MemoryLink, MemoryLink]:
    """Two ends of one in-memory connection."""
    one, two = MemoryLink(loop), MemoryLink(loop)
    one.other, two.other = two, one
    return one, two


class MemoryNetwork:
    """Listeners by endpoint: what the kernel is for sockets."""

    def __init__(self) -> None:
        self.listeners: dict[str, MemoryTransport] = {}


class MemoryTransport:
    """A transport whose peers live in the same process and share its network."""

    def __init__(self, endpoint: str, network: MemoryNetwork | None = None) -> None:
        self.endpoint = endpoint
        self._network = network or MemoryNetwork()
        self._accept: Callable[[Link], Receiver] | None = None
        self._links: list[MemoryLink] = []
        self._loop = asyncio.get_running_loop()

    def listen(self, accept: Callable[[Link], Receiver]) -> None:
        if self.endpoint in self._network.listeners:
            raise Undeliverable(self.endpoint, "this endpoint is already in use")
        self._accept = accept
        self._network.listeners[self.endpoint] = self

    def connect(self, endpoint: str, receiver: CallingReceiver, role: str = "") -> Link:
        listener = self._network.listeners.get(endpoint)
        if listener is None or listener._accept is None:
            raise Undeliverable(endpoint, "nobody listens at this endpoint of the in-memory network")
        near, far = link_pair(self._loop)
        near.receiver = receiver
        far.receiver = listener._accept(far)
        self._links = [link for link in self._links if not link.closed]
        self._links.append(near)
        listener._links = [link for link in listener._links if not link.closed]
        listener._links.append(far)
        return near

    async def close(self) -> None:
        self._network.listeners.pop(self.endpoint, None)
        for link in self._links:
            link.close()
        self._links.clear()
