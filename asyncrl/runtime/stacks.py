"""What a process is doing at this moment: where its threads are, and its tasks, by name."""

import asyncio
import contextlib
import faulthandler
import inspect
import os
import signal
import traceback
from collections.abc import Iterator
from types import FrameType
from typing import Any, TextIO

from asyncrl.runtime.host import STACKS_SIGNAL, ThreadedHost, ThreadFrame, signal_process, size_of, tail_of

END_OF_STACKS = "-- end of the stacks --"
"""What a process whose main thread runs Python writes behind them."""
OWN_THREADS = ("watcher of ", "report of ", "events of ", "forced exit of ", "last words of ")
LIBRARY = inspect.__file__.removesuffix("inspect.py")
EVENT_LOOP = asyncio.events.__file__
"""Where the stock loop calls what it runs; whoever runs the loop is not to blame for that."""
SETTLE_SECONDS = 0.2
"""How long a log must not grow until the stacks in it count as complete, when they have no end mark."""
LONGEST_SECONDS = 2.0
MOST_BYTES = 1 << 20


def where(frame: FrameType) -> str:
    """The place of a frame: "asyncrl/agents/chat.py:42 render"; of the path its last three parts."""
    code = frame.f_code
    return f"{'/'.join(code.co_filename.split('/')[-3:])}:{frame.f_lineno} {code.co_name}"


def place_of(frame: FrameType) -> str:
    """Where a thread is; in a library also who called it: "python3.11/re/__init__.py:166 match (from rewards/parse.py:7 answer)"."""
    caller: FrameType | None = frame
    while caller is not None and of_a_library(caller):
        caller = None if caller.f_code.co_filename == EVENT_LOOP else caller.f_back
    return where(frame) if caller is None or caller is frame else f"{where(frame)} (from {where(caller)})"


def of_a_library(frame: FrameType) -> bool:
    """Whether it is code of the standard library or of an installed package."""
    name = frame.f_code.co_filename
    return name.startswith((LIBRARY, "<frozen")) or "/site-packages/" in name


def stack_of(frame: FrameType) -> list[str]:
    """The stack that ends in ``frame``, oldest call first, as in a traceback."""
    return [line.rstrip() for entry in traceback.format_stack(frame) for line in entry.splitlines()]


def awaited(coroutine: Any) -> Iterator[FrameType]:
    """The frames of a suspended coroutine and of what it awaits, outermost first, as far as Python shows them."""
    while True:
        if inspect.iscoroutine(coroutine):
            frame, coroutine = coroutine.cr_frame, coroutine.cr_await
        elif inspect.isgenerator(coroutine):
            frame, coroutine = coroutine.gi_frame, coroutine.gi_yieldfrom
        elif inspect.isasyncgen(coroutine):
            frame, coroutine = coroutine.ag_frame, coroutine.ag_await
        else:
            return
        if frame is None:
            return
        yield frame


def task_line(task: "asyncio.Task[Any]") -> str:
    """A task by name, and where it waits."""
    places = [where(frame) for frame in awaited(task.get_coro())]
    return f"task {task.get_name()}: {' > '.join(places) or 'has ended'}"


def tasks_of(loop: asyncio.AbstractEventLoop) -> "list[asyncio.Task[Any]]":
    """The tasks of a loop that have not ended, in the order of their names. Any thread."""
    return sorted(asyncio.all_tasks(loop), key=lambda task: task.get_name())


def busy_threads(host: ThreadedHost) -> list[ThreadFrame]:
    """The threads of this process, without those by which the runtime looks after it."""
    return [thread for thread in host.thread_frames() if not thread.name.startswith(OWN_THREADS)]


def describe_stacks(host: ThreadedHost, process: str, loop: asyncio.AbstractEventLoop | None) -> str:
    """The stacks of the threads of this process, and where the tasks of ``loop`` wait. Any thread."""
    lines = [f"stacks of {process}:"]
    for thread in busy_threads(host):
        lines += [f"thread {thread.name}:", *stack_of(thread.frame)]
    if loop is not None:
        lines += [task_line(task) for task in tasks_of(loop)]
    return "\n".join(lines)


def answer_signal(log: TextIO, loop: asyncio.AbstractEventLoop | None = None) -> None:
    """From now on ``STACKS_SIGNAL`` writes the stacks of all threads to ``log``, even while C code holds the interpreter lock.

    With a ``loop`` its tasks and an end mark follow, as soon as the main thread, on which this must be called, runs Python.
    """

    def also(number: int, frame: FrameType | None) -> None:
        # Whatever goes wrong here would be raised in the code that was interrupted.
        with contextlib.suppress(RuntimeError, OSError):
            lines = [] if loop is None else [task_line(task) for task in tasks_of(loop)]
            # Past the buffers: the interrupted code may be writing to the log itself.
            os.write(log.fileno(), "\n".join([*lines, END_OF_STACKS, ""]).encode(errors="replace"))

    if loop is not None:
        # The kernel's handler writes the threads, and then calls this one.
        signal.signal(STACKS_SIGNAL, also)
    faulthandler.register(STACKS_SIGNAL, file=log, all_threads=True, chain=loop is not None)


def ask_by_signal(host: ThreadedHost, pid: int, log: str, name: str) -> str:
    """The stacks that process ``pid`` of our own kind writes to its ``log``; it may hang anywhere. "" when it is gone.

    ``name`` is a word of its command line. Blocks for at most two seconds.
    """
    start = size_of(log)
    if not signal_process(pid, STACKS_SIGNAL, name):
        return ""
    end, settled, size = host.clock() + LONGEST_SECONDS, host.clock() + LONGEST_SECONDS, start
    quiet = host.flag()
    while host.clock() < min(end, settled):
        quiet.wait(SETTLE_SECONDS / 4)
        if size_of(log) != size:
            size, settled = size_of(log), host.clock() + SETTLE_SECONDS
            if END_OF_STACKS in "\n".join(tail_of(log, start, lines=3)):
                break
    return "\n".join(tail_of(log, start, lines=10_000, size=MOST_BYTES))
