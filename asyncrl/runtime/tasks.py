"""Structured tasks: the only place where tasks are born."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from typing import Any, TypeVar, TypeVarTuple

T = TypeVar("T")
Ts = TypeVarTuple("Ts")
Function = Callable[[], Coroutine[Any, Any, Any]]


LAST_SECONDS = 1.0
"""How long a shielded function may still take after it was cancelled because its time was up."""


class EndedEarly(RuntimeError):
    """A background function of ``running`` returned before its block ended."""


@contextlib.asynccontextmanager
async def running(*functions: Function) -> AsyncIterator[None]:
    """Runs functions in the background of a block.

    They are cancelled at its end. The block fails if one of them fails or returns early; a lone error is raised bare.
    """
    tasks: list[asyncio.Task[None]] = []
    try:
        async with asyncio.TaskGroup() as group:
            tasks.extend(group.create_task(_forever(f), name=f.__qualname__) for f in functions)
            yield
            for task in tasks:
                task.cancel()
    except BaseExceptionGroup as found:
        if len(found.exceptions) == 1:
            raise found.exceptions[0] from None
        raise


async def _forever(function: Function) -> None:
    await function()
    raise EndedEarly(f"{function.__qualname__} returned while its block was still running")


async def all_of(functions: Sequence[Callable[[], Coroutine[Any, Any, T]]]) -> list[T]:
    """Results of functions that run at the same time, in order. The first failure cancels the others and is raised bare."""
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(function()) for function in functions]
    except BaseExceptionGroup as found:
        raise found.exceptions[0] from None
    return [task.result() for task in tasks]


async def to_its_end(function: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """Runs a function that must not be left half-way: a cancellation is raised only after it has ended, its result dropped."""
    task = asyncio.get_running_loop().create_task(function(), name=f"to its end {function.__qualname__}")
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        while not task.done():
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.wait([task])
        if not task.cancelled():
            task.exception()
        raise


def asked_from_thread(loop: asyncio.AbstractEventLoop, function: Callable[[], Coroutine[Any, Any, T]], seconds: float) -> T:
    """For another thread: runs a function on ``loop`` and waits for its result.

    Raises TimeoutError when that takes longer than ``seconds``, RuntimeError for a loop that is closed.
    """
    if loop.is_closed():
        raise RuntimeError("the event loop is closed")
    future = asyncio.run_coroutine_threadsafe(function(), loop)
    try:
        return future.result(seconds)
    except TimeoutError:
        future.cancel()
        raise


@contextlib.asynccontextmanager
async def shielded(seconds: float) -> AsyncIterator["Shield"]:
    """A block for cleanup that must await: ``await shield.run(function)`` is not cut by cancellation, only by ``seconds``.

    A cancellation that arrives meanwhile is raised at the end of the block.
    """
    shield = Shield(seconds)
    yield shield
    if shield.cancelled:
        raise asyncio.CancelledError


class Shield:
    """See ``shielded``."""

    def __init__(self, seconds: float) -> None:
        self._loop = asyncio.get_running_loop()
        self._end = self._loop.time() + seconds
        self.cancelled = False

    async def run(self, function: Function) -> bool:
        """Runs ``function`` to its end or to the deadline; its errors are raised. Returns False when the time was up.

        Then it is cancelled. One that goes on all the same is left to itself after another second.
        """
        task: asyncio.Task[Any] = self._loop.create_task(function(), name=f"shielded {function.__qualname__}")
        end, expired = self._end, False
        while not task.done():
            left = end - self._loop.time()
            if left <= 0:
                if expired:
                    return False
                expired, left = task.cancel(), LAST_SECONDS
                end = self._loop.time() + left
            try:
                await asyncio.wait([task], timeout=left)
            except asyncio.CancelledError:
                self.cancelled = True
        if task.cancelled():
            return False
        task.result()
        return True


class Crew:
    """Tasks that belong to one owner: referenced until they end, cancelled and awaited when it closes.

    ``failed`` is told the name of a task and the error that left it; without it the loop's exception handler is.
    """

    def __init__(self, failed: Callable[[str, BaseException], None] | None = None) -> None:
        self._tasks: dict[asyncio.Task[None], None] = {}
        self._failed = failed

    def start(self, function: Callable[[*Ts], Coroutine[Any, Any, None]], *args: *Ts, name: str) -> asyncio.Task[None]:
        """Starts a function. An error that leaves it is told; nothing is lost silently."""
        loop = asyncio.get_running_loop()
        task = loop.create_task(function(*args), name=name)
        self._tasks[task] = None
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.pop(task, None)
        if task.cancelled() or (error := task.exception()) is None:
            return
        if self._failed is not None:
            self._failed(task.get_name(), error)
        else:
            context = {"message": f"task {task.get_name()} failed", "exception": error, "task": task}
            task.get_loop().call_exception_handler(context)

    def __len__(self) -> int:
        return len(self._tasks)

    async def close(self, seconds: float) -> list[str]:
        """Cancels all and waits at most ``seconds``. Returns the names of those that would not end."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        if not tasks:
            return []
        _, pending = await asyncio.wait(tasks, timeout=seconds)
        return [task.get_name() for task in pending]
