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

    @property
    def admitted(self) -> bool:
        """Whether the other end was let in, or has let this one in."""
        ...

    def broken(self, seen: str) -> None:
        """The other end sent what cannot be, in words; the connection ends."""
        ...


class CallingReceiver(Receiver, Protocol):
    """The receiver of a link that was made by ``connect``."""

    def refused(self, cause: str) -> None:
        """The other end will not have this process, or is not who it should be; nothing was or will be delivered."""
        ...


class Link(Protocol):
    """One direction's end of an ordered connection."""

    role: str
    """The role that the other end's key has proved, "" where connections have no keys. Set where a link is accepted."""

    @property
    def state(self) -> str:
        """How far the connection has come, in words."""
        ...

    @property
    def tells(self) -> bool:
        """Whether the receiver is told when the other end is gone, also while nothing is sent."""
        ...

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

    def connect(self, endpoint: str, receiver: CallingReceiver, role: str = "") -> Link:
        """A link to a listener of this role.

        Its receiver hears of it when there is none, after a short while in which it may still come.
        """
        ...

    async def close(self) -> None:
        """Closes all links and frees everything."""
        ...
