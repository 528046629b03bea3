"""Where a rank touches its device: one thread, or the caller's own. Jobs run one at a time, in the order they were given."""

import asyncio
import contextvars
import threading
from collections.abc import Callable
from queue import Empty, SimpleQueue
from types import FunctionType, MethodType
from typing import Any, Generic, ParamSpec, Protocol, TypeVar

from asyncrl.errors import ActorDied

P = ParamSpec("P")
T = TypeVar("T")


class DeviceRunner(Protocol):
    """Runs the device work of a rank: blocking functions, one at a time."""

    async def run(self, function: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        """Call ``function`` after all jobs before it; return or raise what it does."""
        ...


class InlineDevice:
    """Runs each function in the thread of the event loop, where a debugger finds its caller and the terminal."""

    async def run(self, function: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        """Call ``function``; everybody else waits meanwhile."""
        # Between two jobs the loop gets a turn, as it has while a thread works: requests must reach an engine that is busy.
        await asyncio.sleep(0)
        return function(*args, **kwargs)


class _Job(Generic[T]):
    """A call, and the future on some event loop that waits for it."""

    def __init__(self, function: Callable[[], T], name: str) -> None:
        self.name = name
        self.future: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._loop = asyncio.get_running_loop()
        self._function = function
        # The job sees the caller's context, so that a progress mark reaches the caller's call.
        self._context = contextvars.copy_context()

    def run(self) -> None:
        """Call the function, unless its caller has gone, and hand its end to the event loop."""
        if self.future.cancelled():
            return
        try:
            result = self._context.run(self._function)
        except BaseException as error:
            self.fail(error)
        else:
            self._tell(self._settle, result)

    def fail(self, error: BaseException) -> None:
        """Let the caller see ``error``."""
        self._tell(self._refuse, error)

    def _settle(self, result: T) -> None:
        if not self.future.done():
            self.future.set_result(result)

    def _refuse(self, error: BaseException) -> None:
        if not self.future.done():
            self.future.set_exception(error)

    def _tell(self, settle: Callable[[Any], None], outcome: object) -> None:
        try:
            self._loop.call_soon_threadsafe(settle, outcome)
        except RuntimeError:
            # The loop is closed: nobody is left who could wait.
            return


class DeviceThread:
    """Runs blocking functions for coroutines.

    A job whose caller is cancelled before it starts does not run; one that has started runs out, and its result is
    dropped. The thread is a daemon: a collective that never ends does not keep the process alive.
    """

    def __init__(self, name: str = "device") -> None:
        self.name = name
        self._jobs: SimpleQueue[_Job[Any] | None] = SimpleQueue()
        self._lock = threading.Lock()
        self._closed = False
        self._current = ""
        self._thread = threading.Thread(target=self._serve, name=name, daemon=True)
        self._thread.start()

    @property
    def current(self) -> str:
        """The function that runs now, or ""."""
        return self._current

    @property
    def alive(self) -> bool:
        """Whether the thread is there: until its last job after ``close`` has ended."""
        return self._thread.is_alive()

    async def run(self, function: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        """Call ``function`` on the thread after all jobs before it; return or raise what it does.

        Raises ActorDied when the thread is closed before the job starts.
        """
        job = _Job(lambda: function(*args, **kwargs), _name(function))
        with self._lock:
            if self._closed:
                raise self._gone()
            self._jobs.put(job)
        return await job.future

    def close(self) -> None:
        """Answer the jobs that have not started with ActorDied and let the thread end after the one that runs."""
        with self._lock:
            self._closed = True
            while True:
                try:
                    job = self._jobs.get_nowait()
                except Empty:
                    break
                if job is not None:
                    job.fail(self._gone())
            self._jobs.put(None)

    def _gone(self) -> ActorDied:
        return ActorDied(f"the {self.name} thread", "it was closed")

    def _serve(self) -> None:
        while (job := self._jobs.get()) is not None:
            self._current = job.name
            job.run()
            self._current = ""


def _name(function: Callable[..., object]) -> str:
    return function.__qualname__ if isinstance(function, FunctionType | MethodType) else repr(function)
