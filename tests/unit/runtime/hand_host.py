"""A host whose clock and watcher threads move only when a test says so."""

import contextlib
import threading
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO, NoReturn

from asyncrl.runtime import RealHost
from asyncrl.runtime.host import Flag, Thread


class HandFlag:
    """A flag whose waits last until the flag is set, or the test lets them end."""

    def __init__(self) -> None:
        self._turn = threading.Condition()
        self._set = False
        self._ticks = 0
        self.waiting = False
        self.timeouts: list[float | None] = []

    def set(self) -> None:
        with self._turn:
            self._set = True
            self._turn.notify_all()

    def clear(self) -> None:
        with self._turn:
            self._set = False

    def wait(self, timeout: float | None = None) -> bool:
        with self._turn:
            self.timeouts.append(timeout)
            seen, self.waiting = self._ticks, True
            self._turn.notify_all()
            assert self._turn.wait_for(lambda: self._set or self._ticks > seen, 30)
            self.waiting = False
            return self._set

    def tick(self) -> None:
        """Ends the wait that is in progress, and returns when the thread waits again or is gone for good."""
        with self._turn:
            assert self._turn.wait_for(lambda: self.waiting, 30)
            self.waiting = False
            self._ticks += 1
            self._turn.notify_all()
            self._turn.wait_for(lambda: self.waiting, 30)

    def give_up(self) -> None:
        """Whoever waits for the thread need not any more."""
        with self._turn:
            self.waiting = True
            self._turn.notify_all()


class Ended(BaseException):
    """Stands for the end of the process."""


class HandHost(RealHost):
    """The clock stands still until ``tick``, which lets the one watcher look. ``ended`` is the exit code of the process."""

    def __init__(self) -> None:
        self.now = 100.0
        self.ended: int | None = None
        self.disk_is_full = False
        self._flags: list[HandFlag] = []

    def clock(self) -> float:
        return self.now

    def flag(self) -> Flag:
        self._flags.append(HandFlag())
        return self._flags[-1]

    def open_append(self, path: str) -> BinaryIO:
        if self.disk_is_full:
            raise OSError(28, "No space left on device", path)
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        return open(path, "ab")

    def end_process(self, code: int) -> NoReturn:
        self.ended = code
        raise Ended

    def start_thread(self, function: Callable[[], None], name: str) -> Thread:
        def run() -> None:
            with contextlib.suppress(Ended):
                function()
            if name.startswith("watcher"):
                self._flags[0].give_up()

        return super().start_thread(run, name)

    def tick(self, seconds: float) -> None:
        """Time passes, and the watcher looks once."""
        self.now += seconds
        self._flags[0].tick()
