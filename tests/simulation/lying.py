"""Links that duplicate, drop or reorder messages, as no socket does and a faulty peer may."""

from collections.abc import Callable
from random import Random

from asyncrl.runtime.transport import CallingReceiver, Frames, Link, Receiver, Transport

LIES = ("duplicate", "drop", "swap", "repeat later")


class LyingLink:
    """One end; what is sent through it is tampered with at ``rate``, in one way."""

    def __init__(self, link: Link, random: Random, lie: str, rate: float) -> None:
        self._link, self._random, self._lie, self._rate = link, random, lie, rate
        self._kept: Frames | None = None
        self.role = link.role

    @property
    def state(self) -> str:
        return self._link.state

    @property
    def tells(self) -> bool:
        return self._link.tells

    def send(self, frames: Frames) -> None:
        kept, self._kept = self._kept, None
        lies = self._random.random() < self._rate
        if not (lies and self._lie in ("drop", "swap")):
            self._link.send(frames)
        if lies and self._lie == "duplicate":
            self._link.send(frames)
        if kept is not None:
            self._link.send(kept)
        if lies and self._lie in ("swap", "repeat later"):
            self._kept = frames

    def close(self, linger: float = 0.0) -> None:
        self._link.close(linger)


class LyingTransport:
    """Another transport, whose links lie."""

    def __init__(self, inner: Transport, random: Random, lie: str, rate: float) -> None:
        self.endpoint = inner.endpoint
        self._inner, self._random, self._lie, self._rate = inner, random, lie, rate

    def _wrap(self, link: Link) -> Link:
        return LyingLink(link, self._random, self._lie, self._rate)

    def listen(self, accept: Callable[[Link], Receiver]) -> None:
        self._inner.listen(lambda link: accept(self._wrap(link)))

    def connect(self, endpoint: str, receiver: CallingReceiver, role: str = "") -> Link:
        return self._wrap(self._inner.connect(endpoint, receiver, role))

    async def close(self) -> None:
        await self._inner.close()
