"""Every wait on somebody else, by name: who waits for what, since when, and how long it may last."""

import asyncio
import logging
import math
from collections.abc import Callable
from types import TracebackType

import msgspec

from asyncrl.runtime.host import Host

logger = logging.getLogger(__name__)

FOREVER = math.inf
"""Budget of a wait that may last: it is listed, and logged once, but never overdue."""
GRACE = 2.0
"""Seconds past its budget after which a wait counts as overdue: its own timer has had its chance."""
LONG = 1.0
"""Seconds from which ``on_long`` is told of a wait that has ended."""


class Wait(msgspec.Struct, eq=False):
    """``who`` is waited for, ``what`` is expected of it, ``since`` is on ``host.clock()``.

    ``budget`` is how long it may last: the call's deadline, its silence, 0 for the registry's stall limit, or ``FOREVER``.
    ``touched`` is the last sign of progress, 0 for none; the budget counts from there.
    """

    who: str
    what: str
    since: float
    budget: float = 0.0
    touched: float = 0.0
    reported: bool = False
    overdue: bool = False


class WaitRegistry:
    """The waits in progress of one process. A wait older than ``stall`` seconds is logged once."""

    def __init__(self, host: Host, stall: float = 60.0) -> None:
        self._host = host
        self._clock = host.clock
        self._stall = stall
        self._waits: dict[Wait, None] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._spared = -math.inf
        self.on_long: Callable[[Wait, float], None] | None = None
        """Told of each wait that lasted ``LONG`` seconds or more, and how long, when it ends."""

    def enter(self, who: str, what: str, budget: float = 0.0) -> Wait:
        """Registers a wait; ``leave`` ends it."""
        wait = Wait(who, what, self._clock(), budget)
        self._waits[wait] = None
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(self._stall, self._look)
        return wait

    def leave(self, wait: Wait) -> float:
        """Ends a wait; harmless when it has ended. Returns the seconds that it lasted."""
        seconds = self._clock() - wait.since
        if self._waits.pop(wait, wait) is None and seconds >= LONG and self.on_long is not None:
            self.on_long(wait, seconds)
        return seconds

    def waiting(self, who: str, what: str, budget: float = 0.0) -> "Waiting":
        """Registers a wait for the length of a block."""
        return Waiting(self, who, what, budget)

    def snapshot(self) -> list[Wait]:
        """The waits in progress, oldest first. Any thread."""
        return list(self._waits)

    def describe(self) -> list[str]:
        """The waits in progress as lines, oldest first: "42 s for shard-0: kv_batch_put". Any thread."""
        now = self._clock()
        return [f"{now - wait.since:.0f} s for {wait.who}: {wait.what}" for wait in self.snapshot()]

    def budget_of(self, wait: Wait) -> float:
        """The seconds that a wait may last."""
        return wait.budget or self._stall

    def lasts(self, wait: Wait) -> bool:
        """Whether a wait has not ended. Any thread."""
        return wait in self._waits

    def spare(self) -> None:
        """Nothing ran for a while, timers neither: a wait that is past its budget has ``GRACE`` seconds from now. Any thread."""
        self._spared = self._clock()

    def overdue(self) -> list[Wait]:
        """The waits that have newly overrun their budget by ``GRACE`` seconds, oldest first. Any thread."""
        latest = self._clock() - GRACE
        if self._spared >= latest:
            return []
        waits = [wait for wait in self.snapshot() if not wait.overdue]
        found = [wait for wait in waits if max(wait.since, wait.touched) + self.budget_of(wait) < latest]
        for wait in found:
            wait.overdue = True
        return found

    def _look(self) -> None:
        self._timer = None
        now = self._clock()
        for wait in self._waits:
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


class Waiting:
    """See ``WaitRegistry.waiting``. A class, because a generator costs three times as much."""

    __slots__ = ("_budget", "_registry", "_wait", "_what", "_who")

    def __init__(self, registry: WaitRegistry, who: str, what: str, budget: float) -> None:
        self._registry, self._who, self._what, self._budget = registry, who, what, budget

    def __enter__(self) -> Wait:
        self._wait = self._registry.enter(self._who, self._what, self._budget)
        return self._wait

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._registry.leave(self._wait)
