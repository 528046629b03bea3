"""Worker threads that run blocking reward functions, each call under a deadline.

A thread cannot be killed. One that overruns its deadline is abandoned: it keeps running what it runs, does nothing
after, and another takes its place, so that the pool never shrinks and the other answers are judged on time.
"""

import asyncio
import bdb
import math
import queue
import signal
import threading
from collections.abc import Callable
from typing import Any

from asyncrl.errors import RewardError

Job = tuple[Callable[[], Any], asyncio.AbstractEventLoop, "asyncio.Future[Outcome]"]
Outcome = tuple[Any, BaseException | None]
"""What a call returned, or what it raised."""


class WorkerPool:
    """At most ``workers`` calls at once, each for at most ``timeout`` seconds. For one event loop."""

    def __init__(self, workers: int, timeout: float) -> None:
        self.timeout = timeout
        self.abandoned = 0
        """Threads that were left behind so far."""
        self._slots = asyncio.Semaphore(workers)
        self._idle: list[_Worker] = []

    async def run(self, call: Callable[[], Any]) -> Any:
        """Run ``call`` in a thread. The deadline counts from its start, not from its place in the queue.

        Raises what ``call`` raises, and RewardError when it overruns.
        """
        async with self._slots:
            worker = self._idle.pop() if self._idle else _Worker()
            try:
                async with asyncio.timeout(self.timeout):
                    value, error = await worker.run(call)
            except TimeoutError:
                self._abandon(worker)
                raise RewardError(f"timeout after {self.timeout:g} s") from None
            except asyncio.CancelledError:
                self._abandon(worker)
                raise
            self._idle.append(worker)
        if error is not None:
            raise error
        return value

    def is_for_the_run(self, error: BaseException) -> bool:
        """Whether what a call raised is meant for the whole run: never in a thread, nor in a process that ignores Ctrl-C."""
        return False

    def close(self) -> None:
        """End the idle threads."""
        while self._idle:
            self._idle.pop().stop()

    def _abandon(self, worker: "_Worker") -> None:
        self.abandoned += 1
        worker.stop()


class InlinePool(WorkerPool):
    """Runs each call in the thread of the event loop and without a deadline: at a breakpoint time does not count."""

    def __init__(self) -> None:
        super().__init__(workers=1, timeout=math.inf)
        self._left = False

    async def run(self, call: Callable[[], Any]) -> Any:
        """Run ``call`` now. Leaving the debugger there is meant as Ctrl-C: for the whole run, not for one answer."""
        if self._left:
            raise bdb.BdbQuit
        try:
            return call()
        except bdb.BdbQuit:
            self._left = True
            signal.raise_signal(signal.SIGINT)
            raise

    def is_for_the_run(self, error: BaseException) -> bool:
        """Ctrl-C is: it reaches the call that runs in the main thread."""
        return isinstance(error, KeyboardInterrupt)


class _Worker:
    """A thread and its inbox. A daemon: an abandoned call does not hold up the end of the process."""

    def __init__(self) -> None:
        self._inbox: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
        threading.Thread(target=self._work, name="reward", daemon=True).start()

    async def run(self, call: Callable[[], Any]) -> Outcome:
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Outcome] = loop.create_future()
        self._inbox.put((call, loop, future))
        return await future

    def stop(self) -> None:
        """Let the thread end after what it is doing."""
        self._inbox.put(None)

    def _work(self) -> None:
        while (job := self._inbox.get()) is not None:
            call, loop, future = job
            try:
                outcome: Outcome = (call(), None)
            except BaseException as error:  # handed to the caller, also a reward function's own sys.exit()
                outcome = (None, error)
            try:
                loop.call_soon_threadsafe(_deliver, future, outcome)
            except RuntimeError:  # the loop was closed while an abandoned call ran
                return


def _deliver(future: "asyncio.Future[Outcome]", outcome: Outcome) -> None:
    if not future.done():
        future.set_result(outcome)
