"""What carries frames between two processes: ordered links, each with a receiver at both ends."""

from collections.abc import Callable, Sequence
from typing import Protocol, TypeAlias

from asyncrl.runtime.shapes import Buffer

Frames: TypeAlias = Sequence[Buffer]
"""A header and the buffers it refers to."""


class Receiver(Protocol):
    """Takes what arrives over a link. Must not raise."""

    def received(self, frames: Sequence[memoryview]) -> None:
        """One message; a stranger may have sent it, so nothing about it is certain, not even that there is a frame."""
        ...

    def lost(self, cause: str) -> None:
        """The other end is gone; nothing more arrives."""
        ...


class Link(Protocol):
    """One direction's end of an ordered connection."""

    def send(self, frames: Frames) -> None:
        """Sends or queues one message; never blocks, never drops while the other end lives."""
        ...

    def close(self, linger: float = 0.0) -> None:
        """Ends the link; what was sent may still leave for ``linger`` seconds."""
        ...


class Transport(Protocol):
    """Listens at ``endpoint`` and connects to others."""

    endpoint: str

    def listen(self, accept: Callable[[Link], Receiver]) -> None:
        """Starts to accept; ``accept`` gives the receiver for each new link."""
        ...

    def connect(self, endpoint: str, receiver: Receiver) -> Link:
        """A link to a listener; its receiver hears of it when there is none, after a short while in which it may still come."""
        ...

    async def close(self) -> None:
        """Closes all links and frees everything."""
        ...
