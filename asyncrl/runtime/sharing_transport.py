"""A transport whose connections share memory, where both ends are on this host."""

from collections.abc import Callable

from asyncrl.runtime.shared_memory import SharedMemory
from asyncrl.runtime.sharing import SharedLink
from asyncrl.runtime.transport import CallingReceiver, Link, Receiver, Transport

ON_THIS_HOST = "ipc://"


class SharingTransport:
    """Over a transport that listens on this host. What it connects to elsewhere shares nothing."""

    def __init__(self, inner: Transport, memory: SharedMemory) -> None:
        self.endpoint = inner.endpoint
        self._inner, self._memory = inner, memory

    def listen(self, accept: Callable[[Link], Receiver]) -> None:
        """See ``Transport``."""

        def shared(link: Link) -> Receiver:
            near = SharedLink(self._memory, link.role)
            near.accepted(link, accept(near))
            return near

        self._inner.listen(shared)

    def connect(self, endpoint: str, receiver: CallingReceiver, role: str = "") -> Link:
        """See ``Transport``."""
        if not endpoint.startswith(ON_THIS_HOST):
            return self._inner.connect(endpoint, receiver, role)
        near = SharedLink(self._memory, "")
        near.connected(self._inner.connect(endpoint, near, role), receiver)
        return near

    async def close(self) -> None:
        """See ``Transport``."""
        await self._inner.close()


def sharing(transport: Transport, memory: SharedMemory) -> Transport:
    """The transport, sharing memory if it listens on this host only; others stay as they are."""
    return SharingTransport(transport, memory) if transport.endpoint.startswith(ON_THIS_HOST) else transport
