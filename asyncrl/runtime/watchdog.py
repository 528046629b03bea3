"""The watcher thread: sees from outside the event loop that the loop stands still, or that a wait has outlived its limit.

It only reads what others own. Its reports leave on short-lived threads: the log itself may be what is stuck.
"""

import asyncio
import itertools
import logging
from collections.abc import Callable

from asyncrl.runtime.histogram import Histogram
from asyncrl.runtime.host import Thread, ThreadedHost
from asyncrl.runtime.loop_health import Look, LoopHealth
from asyncrl.runtime.stacks import describe_stacks, place_of, stack_of
from asyncrl.runtime.waits import GRACE, Wait, WaitRegistry
from asyncrl.runtime.watching import Watching

logger = logging.getLogger(__name__)

PATIENCE = 1.0
"""Seconds for which a report, or the end of the thread, is waited for."""
LAST_PATIENCE = 10.0
"""Seconds for which the last report waits for the stacks of others."""
MOST_FILES = 16
"""Stack files that one process writes in its life."""


class Watchdog:
    """Watches one event loop and the waits of one process; made on that loop's thread, started by ``start``.

    ``ask`` gets the stacks of another process by name, within seconds, "" where that cannot be. ``on_stall`` is told of
    each stall that is over: its seconds and its place. ``on_stuck`` is told the report just before the process is ended,
    and may end it in its own way. ``ask`` runs on threads of its own, the others on the watcher thread.
    """

    def __init__(self, process: str, host: ThreadedHost, waits: WaitRegistry, watching: Watching, stalled_after: float = 1.0) -> None:
        self.process = process
        self.ask: Callable[[str], str] = lambda name: ""
        self.on_stall: Callable[[float, str], None] | None = None
        self.on_stuck: Callable[[str], None] | None = None
        self.lags = Histogram()
        """How late the loop answered its pings, one in each interval."""
        self.stalls = 0
        self._host, self._waits, self._watching = host, waits, watching
        self._loop = asyncio.get_running_loop()
        self._loop_thread = host.this_thread()
        self._health = LoopHealth(stalled_after, watching.budget, host.clock())
        self._wake = host.flag()
        self._closed = False
        self._thread: Thread | None = None
        self._place = ""
        self._files = itertools.count(1)

    @property
    def stalled(self) -> bool:
        """Whether the loop stands still, as far as was noticed."""
        return self._health.stalled

    def start(self) -> None:
        """Begins to watch."""
        self._thread = self._host.start_thread(self._watch, f"watcher of {self.process}")

    def close(self) -> None:
        """Ends the thread, unless it is busy with a report."""
        self._closed = True
        self._wake.set()
        if self._thread is not None:
            self._thread.join(PATIENCE)

    def _watch(self) -> None:
        while True:
            self._wake.wait(self._health.interval)
            self._wake.clear()
            # The end of a stall is told even if the process ends with it.
            if not self._closed or self._health.stalled:
                self._look()
            if self._closed:
                return

    def _look(self) -> None:
        now = self._host.clock()
        if not self._loop.is_running():
            # Whoever runs it in pieces does not let it answer in between.
            self._health.answer(now)
        seen = self._health.look(now)
        if seen is not None:
            self._act(seen)
        if self._health.held_up:
            # A wait is overdue when its timer had its chance, and it had none: the process was frozen.
            self._waits.spare()
        if self._health.due:
            self._ping()
        for wait in self._waits.overdue():
            self._overdue(wait)

    def _ping(self) -> None:
        self._health.sent(self._host.clock())
        try:
            self._loop.call_soon_threadsafe(self._answer)
        except RuntimeError:
            self._closed = True  # the loop was closed without a word

    def _answer(self) -> None:
        self._health.answer(self._host.clock())
        if self._health.stalled:
            self._wake.set()

    def _act(self, seen: Look) -> None:
        if seen.finding in ("answered", "over"):
            self.lags.record(seen.seconds)
            if seen.finding == "over":
                self._say(f"event loop of {self.process} was blocked {seen.seconds:.1f} s in {self._place}; it runs again")
                if self.on_stall is not None:
                    self.on_stall(seen.seconds, self._place)
            return
        stack = self._loop_stack()
        blocked = f"event loop of {self.process} blocked {seen.seconds:.1f} s"
        if seen.finding == "stood still":
            # Whoever held the lock may have left the place.
            held = "a frozen process, or code that holds the interpreter lock"
            self._say(f"{blocked}, as were all other threads: {held}; it is now in {self._place}")
            return
        blocked = f"{blocked} in {self._place}"
        if seen.finding == "stalled":
            self.stalls += 1
            self._say(blocked)
        elif seen.finding == "stuck":
            self._say("\n".join([f"{blocked}; its stack:", *stack]))
        else:
            self._end(f"{blocked}: its budget of {self._watching.budget:g} s is spent")

    def _loop_stack(self) -> list[str]:
        """The stack of the loop's thread; notes its place."""
        frame = next((thread.frame for thread in self._host.thread_frames() if thread.number == self._loop_thread), None)
        self._place = "a thread that has ended" if frame is None else place_of(frame)
        return [] if frame is None else stack_of(frame)

    def _overdue(self, wait: Wait) -> None:
        if not self._waits.lasts(wait):
            return
        now = self._host.clock()
        limit = self._waits.budget_of(wait)
        report = f"waited {now - wait.since:.1f} s for {wait.who}: {wait.what}, {GRACE:g} s past its limit of {limit:g} s"
        if self._health.stalled:
            report = f"{report}; the event loop is blocked for {self._health.since(now):.1f} s in {self._place} and cannot end it"
        if self._watching.end_when_stuck:
            self._end(report, wait)
        else:
            # Others may take seconds to tell their stacks, and this loop is to be looked after meanwhile.
            self._in_time(lambda: logger.warning("%s", "\n".join([report, *self._keep_stacks(wait)])))

    def _end(self, report: str, wait: Wait | None = None) -> None:
        """The last words: the report, all waits, all stacks; then the end of the process, unless ``wait`` has ended meanwhile."""
        spared = False
        try:
            last = f"{report}, the process ends"
            words = [last, *(f"waiting {line}" for line in self._waits.describe())]
            self._in_time(lambda: words.extend(self._keep_stacks(wait)), LAST_PATIENCE)
            spared = wait is not None and not self._waits.lasts(wait)
            if spared:
                self._say(f"{report}; it has ended meanwhile")
                return
            self._say("\n".join([*words, self._stacks()]), logging.CRITICAL)
            if self.on_stuck is not None:
                self.on_stuck(last)
        finally:
            if not spared:
                self._host.end_process(1)

    def _stacks(self) -> str:
        return describe_stacks(self._host, self.process, self._loop)

    def _keep_stacks(self, wait: Wait | None) -> list[str]:
        """Writes the stacks of this process and of the one that is waited for into the folder; returns where, a line each."""
        other = self.process if wait is None else wait.who.rpartition("@")[2]
        lines = self._keep(self.process, self._stacks())
        if other != self.process and (text := self.ask(other)):
            lines += self._keep(other, text)
        return lines

    def _keep(self, process: str, text: str) -> list[str]:
        if not self._watching.stacks or (number := next(self._files)) > MOST_FILES:
            return []
        path = f"{self._watching.stacks}/stacks-{process}-{number}.txt"
        kept: list[str] = []

        def write() -> None:
            try:
                with self._host.open_append(path) as file:
                    file.write(text.encode() + b"\n")
            except OSError as error:
                logger.warning("the stacks of %s cannot be kept: %s", process, error)
            else:
                kept.append(f"stacks of {process}: {path}")

        self._host.start_thread(write, f"report of {self.process}").join(PATIENCE)
        return list(kept)

    def _say(self, text: str, level: int = logging.WARNING) -> None:
        self._in_time(lambda: logger.log(level, "%s", text))

    def _in_time(self, function: Callable[[], None], patience: float = PATIENCE) -> None:
        """Runs what may block, and waits a moment for it, which makes the next look no later."""
        before = self._host.clock()
        self._host.start_thread(function, f"report of {self.process}").join(patience)
        # Beyond its patience it was this process that stood still.
        self._health.excuse(min(self._host.clock() - before, patience))
