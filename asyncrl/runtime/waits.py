"""Every wait on somebody else, by name: who waits for what, and since when."""

import asyncio
import contextlib
import logging
from collections.abc import Iterator

import msgspec

from asyncrl.runtime.host import Host

logger = logging.getLogger(__name__)


class Wait(msgspec.Struct, eq=False):
    """``who`` is waited for, ``what`` is expected of it, ``since`` is on ``host.clock()``."""

    who: str
    what: str
    since: float
    reported: bool = False


class WaitRegistry:
    """The waits in progress of one process. A wait older than ``stall`` seconds is logged once."""

    def __init__(self, host: Host, stall: float = 60.0) -> None:
        self._host = host
        self._stall = stall
        self._waits: dict[int, Wait] = {}
        self._next = 0
        self._timer: asyncio.TimerHandle | None = None

    def enter(self, who: str, what: str) -> int:
        """Registers a wait and returns its ticket."""
        self._next += 1
        self._waits[self._next] = Wait(who, what, self._host.clock())
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(self._stall, self._look)
        return self._next

    def leave(self, ticket: int) -> None:
        """Ends a wait; harmless when it has ended."""
        self._waits.pop(ticket, None)

    @contextlib.contextmanager
    def waiting(self, who: str, what: str) -> Iterator[None]:
        """Registers a wait for the length of a block."""
        ticket = self.enter(who, what)
        try:
            yield
        finally:
            self.leave(ticket)

    def snapshot(self) -> list[Wait]:
        """The waits in progress, oldest first."""
        return list(self._waits.values())

    def _look(self) -> None:
        self._timer = None
        now = self._host.clock()
        for wait in self._waits.values():
            if not wait.reported and now - wait.since >= self._stall:
                wait.reported = True
                logger.warning("waiting %.0f s for %s: %s", now - wait.since, wait.who, wait.what)
        if self._waits:
            self._timer = asyncio.get_running_loop().call_later(self._stall, self._look)

    def close(self) -> None:
        """Stops the stall reports."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
