"""Deadlines of many calls with one timer for each length: a timer of the loop for every call would cost more than the call."""

import asyncio
from typing import Protocol

LATE = 0.2
"""Seconds by which a timer may be late; one that is later was held up by a loop that stood still."""
SECOND_LOOK = 0.05
"""Then the answers that came meanwhile are read first: so long is waited for them."""
CROWD = 64
"""Lengths that are kept for their next item. A process uses a few over and over; what a call has left of its time is used once."""


class Expiring(Protocol):
    """Something that has a deadline."""

    expires: float

    def expire(self) -> None:
        """The time is up."""
        ...


class Deadlines:
    """What expires, by how long it was given: each length is a queue in order of time, and only its head has a timer.

    A queue outlives its last item until its timer fires, so that a length in use costs no timer for each item. When there are
    many lengths, those without an item are dropped.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._queues: dict[float, dict[Expiring, None]] = {}
        self._timers: dict[float, asyncio.TimerHandle] = {}
        self._crowd = CROWD

    def __len__(self) -> int:
        """How many lengths are kept."""
        return len(self._queues)

    def add(self, item: Expiring, seconds: float) -> None:
        """``item.expire`` is called in ``seconds``, unless it is removed before."""
        item.expires = self._loop.time() + seconds
        queue = self._queues.get(seconds)
        if queue is None:
            if len(self._queues) >= self._crowd:
                self._thin_out()
            queue = self._queues[seconds] = {}
        queue[item] = None
        if seconds not in self._timers:
            self._timers[seconds] = self._loop.call_at(item.expires, self._look, seconds)

    def remove(self, item: Expiring, seconds: float) -> None:
        """Forgets ``item``; harmless when it has expired."""
        queue = self._queues.get(seconds)
        if queue is not None:
            queue.pop(item, None)

    def _thin_out(self) -> None:
        """Drops the lengths without an item. It comes again when there are twice as many: a constant cost for each new length."""
        for seconds in [seconds for seconds, queue in self._queues.items() if not queue]:
            del self._queues[seconds]
            timer = self._timers.pop(seconds, None)
            if timer is not None:
                timer.cancel()
        self._crowd = max(CROWD, 2 * len(self._queues))

    def _look(self, seconds: float, again: bool = False) -> None:
        del self._timers[seconds]
        queue, now = self._queues[seconds], self._loop.time()
        due: list[Expiring] = []
        for item in queue:
            if now - item.expires > LATE and not again:
                self._timers[seconds] = self._loop.call_later(SECOND_LOOK, self._look, seconds, True)
                return
            if item.expires > now:
                self._timers[seconds] = self._loop.call_at(item.expires, self._look, seconds)
                break
            due.append(item)
        for item in due:
            # An earlier one of this turn may have ended it.
            if queue.pop(item, item) is None:
                item.expire()
        # What expired may have begun a new queue of this length.
        if not queue and seconds not in self._timers:
            self._queues.pop(seconds, None)

    def close(self) -> None:
        """Stops all timers."""
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()
        self._queues.clear()
