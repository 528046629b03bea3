"""Whether an event loop turns, judged from its answers to pings: pure, the caller brings the clock."""

from typing import Literal

import msgspec

LATE = 1.5
"""Intervals, but at least a second, by which a look is late that was itself held up: the whole process stood still."""
HELD_UP = 1.0
"""Seconds by which a look is late that says nothing of timers: they may not have been served for want of time."""
SLACK = 0.02
"""Share of the interval by which a look may come early."""

Finding = Literal["answered", "stalled", "stuck", "over budget", "over", "stood still"]


class Look(msgspec.Struct, frozen=True):
    """What one look found, and the seconds it is about.

    "answered" and "over" say how long the answer took, the others for how long at least the loop has not turned.
    """

    finding: Finding
    seconds: float


class LoopHealth:
    """State of the pings of one loop. ``look`` is called every ``interval`` seconds, and once more when a stalled loop answers.

    A stall is reported at one interval ("stalled"), at two ("stuck"), at its budget, and when it is over. ``due`` tells
    after a look whether the next ping is due, ``held_up`` whether it came so late that no timer can have been served before
    it. ``answer`` may be called on another thread.
    """

    def __init__(self, interval: float, budget: float | None, now: float) -> None:
        self.interval = interval
        limits: list[tuple[float, Finding]] = [(2 * interval, "stuck"), (interval, "stalled")]
        if budget is not None:
            limits.insert(0, (budget, "over budget"))
        self._limits = sorted(limits, key=lambda pair: -pair[0])
        self._sent = self._looked = now
        self._answered: float | None = now
        self._reported: list[Finding] = []
        self.due = self.held_up = False

    @property
    def stalled(self) -> bool:
        """Whether a stall was reported that is not over."""
        return bool(self._reported)

    def since(self, now: float) -> float:
        """Seconds since the unanswered ping, 0 when it is answered."""
        return 0.0 if self._answered is not None else now - self._sent

    def sent(self, now: float) -> None:
        """A ping leaves."""
        self._sent, self._answered, self.due = now, None, False

    def answer(self, now: float) -> None:
        """The loop has answered the ping."""
        self._answered = now

    def excuse(self, seconds: float) -> None:
        """Whoever looks was busy for so long: the next look is not late by that."""
        self._looked += seconds

    def look(self, now: float) -> Look | None:
        """What is to be said now."""
        gap, self._looked = now - self._looked, now
        self.held_up = gap >= self.interval + HELD_UP
        answered = self._answered
        self.due = answered is not None
        if gap >= self.interval + max(LATE * self.interval, 1.0):
            # Nobody could have answered meanwhile; the loop gets its time anew.
            self._sent = now if answered is None else self._sent
            return Look("stood still", gap - self.interval)
        if answered is not None:
            found: Finding = "over" if self.stalled else "answered"
            self._reported.clear()
            return Look(found, answered - self._sent)
        age = now - self._sent
        passed = next((finding for limit, finding in self._limits if age >= limit * (1 - SLACK)), None)
        if passed is None or passed in self._reported:
            return None
        self._reported.append(passed)
        return Look(passed, age)
