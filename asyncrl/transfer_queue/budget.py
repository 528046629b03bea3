"""``Budget``: how many bytes new rows of a shard may take, and who waits for room, first come first served."""

import asyncio
import logging
from collections import deque
from collections.abc import Callable

from asyncrl.errors import QueueFull
from asyncrl.runtime.host import Host
from asyncrl.transfer_queue.rows import WaitingProducer

logger = logging.getLogger(__name__)

REPORT_SECONDS = 5.0
RESERVED_SECONDS = 10.0
"""How long room is kept for a producer that was told that there is some."""


class Turn:
    """One producer in the queue for room."""

    __slots__ = ("granted", "needed", "since", "who")

    def __init__(self, who: str, needed: int, since: float, granted: "asyncio.Future[int]") -> None:
        self.who, self.needed, self.since, self.granted = who, needed, since, granted


class Budget:
    """``limit`` bytes, 0 for no bound; ``used`` tells what the rows take now, ``squeeze`` makes it less where it can.

    A producer that is refused asks for room and waits; then its room is reserved until it comes back with its ticket. Tickets
    of another life of the shard (``generation``) are worth nothing.
    """

    def __init__(
        self, slot: int, limit: int, used: Callable[[], int], squeeze: Callable[[], bool], host: Host, generation: int = 0
    ) -> None:
        self.slot, self.limit = slot, limit
        self._used, self._squeeze, self._host = used, squeeze, host
        self._turns: deque[Turn] = deque()
        self._reserved: dict[int, int] = {}
        self._tickets = generation << 32
        self._reporter: asyncio.TimerHandle | None = None

    def admit(self, needed: int, ticket: int) -> None:
        """Lets new rows in, or raises QueueFull. A ticket is used up; ``settle`` comes after the rows."""
        if not self.limit:
            return
        kept = self._reserved.pop(ticket, 0)
        if kept >= needed:
            return
        if self._turns or not self._fits(needed):
            raise QueueFull(self.slot, needed, self._used(), self.limit)

    def check_size(self, needed: int) -> None:
        """Raises ValueError for rows that no room will ever be enough for."""
        if self.limit and needed > self.limit:
            raise ValueError(f"{needed} bytes in one put to shard {self.slot}, whose budget is {self.limit}; put fewer rows at a time")

    def settle(self, ticket: int) -> None:
        """A put has ended, in whatever way: the room that it reserved and did not take, or made, is for the next in turn."""
        self._reserved.pop(ticket, None)
        self.freed()

    def _fits(self, needed: int) -> bool:
        taken = sum(self._reserved.values()) + needed
        if self._used() + taken <= self.limit:
            return True
        return self._squeeze() and self._used() + taken <= self.limit

    async def room(self, who: str, needed: int) -> int:
        """Waits until ``needed`` bytes are free for ``who`` and returns the ticket with which to put them.

        waits for: rows that are cleared
        unblocked by: ``freed``; the caller leaving
        """
        self.check_size(needed)
        loop = asyncio.get_running_loop()
        turn = Turn(who, needed, self._host.clock(), loop.create_future())
        self._turns.append(turn)
        if self._reporter is None:
            self._reporter = loop.call_later(REPORT_SECONDS, self._report)
        self.freed()
        try:
            return await turn.granted
        except asyncio.CancelledError:
            if turn in self._turns:
                self._turns.remove(turn)
            elif not turn.granted.cancelled():
                self._reserved.pop(turn.granted.result(), None)
            self.freed()
            raise

    def freed(self) -> None:
        """Gives room to those whose turn it is."""
        while self._turns and self._fits(self._turns[0].needed):
            turn = self._turns.popleft()
            if turn.granted.cancelled():
                # It has left, and has not run since.
                continue
            self._tickets += 1
            self._reserved[self._tickets] = turn.needed
            turn.granted.set_result(self._tickets)
            asyncio.get_running_loop().call_later(RESERVED_SECONDS, self._forget, self._tickets)

    def _forget(self, ticket: int) -> None:
        if self._reserved.pop(ticket, 0):
            self.freed()

    def waiting(self) -> list[WaitingProducer]:
        """Who waits, the first in turn first."""
        now = self._host.clock()
        return [WaitingProducer(turn.who, turn.needed, now - turn.since) for turn in self._turns]

    def _report(self) -> None:
        self._reporter = None
        waiting = self.waiting()
        if not waiting:
            return
        first = waiting[0]
        logger.warning(
            "shard %d is full (%d of %d bytes): %s waits %.0f s for %d bytes, %d producers wait",
            *(self.slot, self._used(), self.limit, first.who, first.seconds, first.needed, len(waiting)),
        )
        self._reporter = asyncio.get_running_loop().call_later(REPORT_SECONDS, self._report)

    def close(self) -> None:
        """Stops the reports."""
        if self._reporter is not None:
            self._reporter.cancel()
            self._reporter = None
