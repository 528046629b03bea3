"""An end that must come: who shuts down and does not get there is ended by name."""

import asyncio
import logging
import os
import sys
from collections.abc import Callable

from asyncrl.runtime.host import ThreadedHost
from asyncrl.runtime.stacks import busy_threads, describe_stacks, place_of, tasks_of
from asyncrl.runtime.waits import WaitRegistry

FLUSH_SECONDS = 1.0
STANDARD_ERROR = 2


class ForcedExit:
    """From ``start`` on this process has ``seconds`` to end, or to call ``cancel``.

    After that it says on standard error what it still waits for (waits, tasks, threads, and all stacks), flushes the logs
    and leaves with ``code``. Runs on a thread of its own, which lasts until the interpreter is gone. ``before`` is the last
    act, with a second for it.

    Example::

        exit = ForcedExit(RealHost(), "server", 10.0, waits=system.waits)
        exit.start()
        await system.close()
        exit.cancel()
    """

    def __init__(
        self,
        host: ThreadedHost,
        process: str,
        seconds: float = 10.0,
        *,
        waits: WaitRegistry | None = None,
        code: int = 1,
        before: Callable[[], None] | None = None,
    ) -> None:
        self._host, self._process, self._seconds, self._waits, self._code = host, process, seconds, waits, code
        self._before = before
        self._loop: asyncio.AbstractEventLoop | None = None
        self._done = host.flag()
        self._started = False

    def start(self) -> None:
        """The time runs, from the first call on. Called on a running loop, its tasks are named too."""
        if self._started:
            return
        self._started = True
        try:
            self._loop = asyncio.get_running_loop()
        except RuntimeError:
            self._loop = None
        self._host.start_thread(self._run, f"forced exit of {self._process}")

    def cancel(self) -> None:
        """The shutdown has come to its end."""
        self._done.set()

    def _run(self) -> None:
        if self._done.wait(self._seconds):
            return
        try:
            words = self.last_words()
            # The terminal, the log or the disk may be what hangs.
            self._host.start_thread(lambda: self._leave(words), f"last words of {self._process}").join(FLUSH_SECONDS)
        finally:
            self._host.end_process(self._code)

    def _leave(self, words: str) -> None:
        say_last(words)
        flush_output()
        if self._before is not None:
            self._before()

    def last_words(self) -> str:
        """The report: one line that names what is left, then the stacks."""
        left = [] if self._waits is None else self._waits.describe()
        if self._loop is not None:
            left += [f"task {task.get_name()}" for task in tasks_of(self._loop)]
        left += [f"thread {thread.name} in {place_of(thread.frame)}" for thread in busy_threads(self._host)]
        first = f"forced exit after {self._seconds:g} s: still waiting for {'; '.join(left)}"
        return "\n".join([first, describe_stacks(self._host, self._process, self._loop)])


def say_last(text: str) -> None:
    """Writes to standard error past all buffers and locks."""
    view = memoryview(f"{text}\n".encode(errors="replace"))
    while view:
        view = view[os.write(STANDARD_ERROR, view) :]


def flush_output() -> None:
    """Hands to the kernel what standard output, standard error and the logs hold."""
    logging.shutdown()
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
