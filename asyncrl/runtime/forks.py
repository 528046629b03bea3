"""What happens to a fork of a running process: its copies of sockets, threads and files are dead, and it is told so by name.

A fork copies locks in the state they are in and threads not at all; a copy that used its parent's sockets would hang, or
speak in its parent's name. So everything that holds some is told, in the copy, before that runs any code of its own.
"""

import asyncio
import contextlib
import logging
import os
import weakref
from typing import Protocol

from asyncrl.runtime.host import RealHost

logger = logging.getLogger(__name__)

FORKED = "forked after start: this process is a copy of one whose actor system ran; start processes with spawn or forkserver"


class Forkable(Protocol):
    """Something that a fork must not use."""

    def forked(self) -> None:
        """This is the copy. Must not wait, and must not raise."""
        ...


_running: "weakref.WeakSet[Forkable]" = weakref.WeakSet()


def beware_of_forks(held: Forkable) -> None:
    """``held.forked`` is called in every copy of this process, as long as ``held`` lives."""
    _running.add(held)


def never_again(loop: asyncio.AbstractEventLoop) -> None:
    """For a copy: it ends where it comes back to its parent's event loop, as by ``sys.exit`` in a coroutine.

    The two share what the loop waits on: there the copy would take its parent's wake-ups, and silence what it closes.
    """
    # Otherwise the loop is closed, or another thread has made the copy: then nothing runs the loop there.
    with contextlib.suppress(RuntimeError):
        loop.call_soon(_leave)


def _leave() -> None:
    logger.error("%s; it has come back to its parent's event loop, and ends", FORKED)
    RealHost().end_process(1)


def _in_copy() -> None:
    for held in list(_running):
        held.forked()
    _running.clear()


os.register_at_fork(after_in_child=_in_copy)
