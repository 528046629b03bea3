"""How often a child may be restarted: pure, the caller brings the clock."""

from collections import deque

import msgspec


class Ending(msgspec.Struct, frozen=True):
    """How one life of a child ended ("signal 9 (SIGKILL)"), and what it printed last."""

    exit: str
    last_lines: list[str]


class Verdict(msgspec.Struct, frozen=True):
    """What follows an end: a restart or none, the restarts within the window before it, and the first end of the window."""

    restarting: bool
    restarts: int
    first: Ending


class RestartBudget:
    """At most ``limit`` restarts within any ``window`` seconds. One more end is final, and the first of the window is its cause."""

    def __init__(self, limit: int, window: float) -> None:
        if limit < 0 or window <= 0:
            raise ValueError(f"a budget has at least 0 restarts and a window of more than 0 s, got {limit} in {window:g} s")
        self._limit, self._window = limit, window
        self._ends: deque[tuple[float, Ending]] = deque()

    def ended(self, now: float, ending: Ending) -> Verdict:
        """One life ended at ``now``; times never go back."""
        while self._ends and now - self._ends[0][0] >= self._window:
            self._ends.popleft()
        restarts = len(self._ends)
        self._ends.append((now, ending))
        return Verdict(restarts < self._limit, restarts, self._ends[0][1])
