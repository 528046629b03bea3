"""Ends the attempt when something it cannot do without is gone, and says what was first."""

import asyncio
import contextlib
import os
import select
import shutil
import signal
import sys
import time
from collections.abc import Callable, Mapping
from types import FrameType
from typing import NoReturn

from asyncrl.launch.run_folder import RunFolder

EXIT_FAILED = 1
EXIT_CONFIG = 2
SIGNAL_EXITS = {signal.SIGHUP: 129, signal.SIGINT: 130, signal.SIGQUIT: 131, signal.SIGTERM: 143}
"""The signals that torchrun passes on, and the exit code of each."""

NOTICE_SECONDS = 1.0
"""How long an error waits for the news of a death that would explain it: a lost peer is noticed first by its callers."""


MOURNING_SECONDS = 0.3
"""On several nodes: how long the death of a child waits for the news that its end followed from that of a rank elsewhere."""

FAREWELL_SECONDS = 0.1
"""How long the cause has to leave for the other nodes before this process exits."""


class Guard:
    """Watches processes by pidfd from the event loop, so that a collective that blocks the device thread cannot hide a death.

    A death claims the first cause in the run folder and ends this process at once. Its children need no call: the
    supervisor sees the lifeline close and kills them. ``folder`` is None until rank 0 has said where it is.
    """

    def __init__(self, parent: int, folder: RunFolder | None = None) -> None:
        self.folder = folder
        self.sockets = ""
        """The folder of sockets, on rank 0: a supervisor that has not come up yet cannot remove it."""
        self.starting = True
        """Whether the other ranks are not watched yet."""
        self.place = ""
        """This node in words, "" where there is only one."""
        self.speaks = False
        """Whether this process says a cause although there is no run folder yet: the first of a node, where there are several."""
        self.farewell: Callable[[str], None] | None = None
        """Tells the other nodes the cause, where there are others."""
        self.last_act: Callable[[], None] | None = None
        """Runs before this process ends: writes out what it has not written yet; takes a second at most."""
        self.released = False
        """Whether the run is over, so that no end is a death any more."""
        self.failure = ""
        """The error that is about to end the attempt, unless a death explains it."""
        self._parent = parent
        self._watched: dict[int, str] = {}

    def catch_signals(self) -> None:
        """Name a signal and leave, as long as no event loop takes the signals over."""
        for number in SIGNAL_EXITS:
            signal.signal(number, self._caught)

    def _caught(self, number: int, frame: FrameType | None) -> None:
        caught = signal.Signals(number)
        self.end(self.death() or self.stopped(caught), SIGNAL_EXITS[caught])

    def stopped(self, number: signal.Signals) -> str:
        """A signal as a cause. torchrun sends SIGTERM also when a rank has ended that was not watched yet."""
        hint = " while starting; when another rank ended first, torchrun's report names it"
        return f"stopped by {number.name}{self.place}{hint if self.starting and number == signal.SIGTERM else ''}"

    def watch_parent(self) -> None:
        """End the attempt when the torchrun agent ends."""
        self.watch({f"the torchrun agent{self.place}": self._parent})

    def watch(self, processes: Mapping[str, int]) -> None:
        """End the attempt when one of these processes (name -> pid, on this host) ends."""
        loop = asyncio.get_running_loop()
        for name, pid in processes.items():
            cause = f"{name} (pid {pid}) died"
            try:
                descriptor = os.pidfd_open(pid)
            except ProcessLookupError:
                self.end(cause)
            self._watched[descriptor] = cause
            loop.add_reader(descriptor, self.end, cause)

    def release(self) -> None:
        """Stop watching: the run is over and the others may leave."""
        self.released = True
        loop = asyncio.get_running_loop()
        for descriptor in self._watched:
            loop.remove_reader(descriptor)
            os.close(descriptor)
        self._watched.clear()

    def death(self) -> str:
        """The death that has happened although the event loop has not come to it yet, "" when there is none."""
        if os.getppid() != self._parent:
            return f"the torchrun agent{self.place} (pid {self._parent}) died"
        poll = select.poll()
        for descriptor in self._watched:
            poll.register(descriptor, select.POLLIN)
        ended = dict(poll.poll(0))
        return next((cause for descriptor, cause in self._watched.items() if descriptor in ended), "")

    def fail(self, cause: str, code: int = EXIT_FAILED) -> None:
        """End the attempt with an error of this process, after a moment in which a death may turn out to be its cause."""
        if not self.failure:
            self.failure = cause
            asyncio.get_running_loop().call_later(NOTICE_SECONDS, self.end, cause, code)

    def mourn(self, cause: str) -> None:
        """End the attempt because a child died: at once, on several nodes after a moment."""
        if self.farewell is None:
            self.end(cause)
        asyncio.get_running_loop().call_later(MOURNING_SECONDS, self.end, cause)

    async def never(self) -> NoReturn:
        """Wait for the end that ``fail`` has ordered."""
        await asyncio.get_running_loop().create_future()
        raise AssertionError("nobody answers this future")

    def claim(self, cause: str) -> None:
        """Write and say the first cause, unless another process was first."""
        if self.folder is None:
            lines = [cause] if self.speaks else []
        else:
            lines = [cause, f"the run folder is {self.folder.path}"] if self.folder.claim_cause(cause) else []
        # A closed terminal must not keep this process.
        with contextlib.suppress(OSError):
            for line in lines:
                print(f"asyncrl: {line}", file=sys.stderr, flush=True)

    def end(self, cause: str, code: int = EXIT_FAILED) -> NoReturn:
        """Claim the first cause, say it, and leave without waiting for any thread."""
        try:
            self.claim(cause)
            if self.sockets:
                shutil.rmtree(self.sockets, ignore_errors=True)
            sys.stdout.flush()
            if self.farewell is not None:
                self.farewell(cause)
                time.sleep(FAREWELL_SECONDS)
            if self.last_act is not None:
                self.last_act()
        finally:
            os._exit(code)


class Interrupts:
    """Signals cancel the main task, which has ``LEAVE_SECONDS`` to close its files; a second signal ends the process at once.

    In a run that ``saves`` on exit it has ``SAVE_SECONDS``. The first rank saves; the others (``follows``) serve it until it ends.
    """

    LEAVE_SECONDS = 5.0
    SAVE_SECONDS = 25.0
    """torchrun kills what is left 30 s after a signal."""
    PASSED_ON_SECONDS = 3.0
    """How long a second signal may be the first one that torchrun passes on, where there is something to save."""
    SETTLE_SECONDS = 0.5
    """How long SIGTERM waits for an explanation: when the parent dies, the kernel sends it for the end of each of its threads, and
    only the last one makes the parent dead for its pidfd."""

    def __init__(self, guard: Guard, *, saves: bool = False, follows: bool = False) -> None:
        self.caught: signal.Signals | None = None
        self._saves, self._follows = saves, follows
        self._stopped_at = 0.0
        self._stopping = False
        self._guard = guard
        self._loop = asyncio.get_running_loop()
        task = asyncio.current_task()
        assert task is not None
        self._task = task
        for number in SIGNAL_EXITS:
            self._loop.add_signal_handler(number, self._interrupt, number)

    def _interrupt(self, number: signal.Signals) -> None:
        """torchrun also signals the ranks when one of them has ended: then that is the cause, and not the signal."""
        if self._stopping:
            assert self.caught is not None
            if self._saves and self._loop.time() - self._stopped_at < self.PASSED_ON_SECONDS:
                return
            first = self._guard.stopped(self.caught)
            self._guard.end(self._guard.death() or self._guard.failure or first, SIGNAL_EXITS[self.caught])
        if self.caught is not None:
            return
        self.caught = number
        self._loop.call_later(self.SETTLE_SECONDS if number == signal.SIGTERM else 0.0, self._stop, number)

    def _stop(self, number: signal.Signals) -> None:
        self._stopping, self._stopped_at = True, self._loop.time()
        cause, code = self._guard.stopped(number), SIGNAL_EXITS[number]
        if explained := self._guard.death() or self._guard.failure:
            self._guard.end(explained, code)
        self._guard.claim(cause)
        self._loop.call_later(self.SAVE_SECONDS if self._saves else self.LEAVE_SECONDS, self._guard.end, cause, code)
        if self._saves and self._follows and not self._guard.starting:
            return
        self._guard.release()
        self._task.cancel()
