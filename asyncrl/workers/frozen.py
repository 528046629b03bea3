"""The end of a process in which no Python can run any more."""

import asyncio
import faulthandler

REARMED = 2
"""How often within the margin the event loop puts the end off."""


class FrozenExit:
    """Ends this process, after all stacks on standard error, when its event loop has not run for ``seconds + margin``.

    The clock is a thread of ``faulthandler``, which needs no interpreter lock; a process has one such clock, so only
    somebody who has the process to himself may use it. What stands still for at most ``seconds`` is never ended.
    """

    def __init__(self, seconds: float, margin: float) -> None:
        self._seconds, self._margin = seconds, margin
        self._next: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """From now on, on the running loop."""
        faulthandler.dump_traceback_later(self._seconds + self._margin, exit=True)
        self._next = asyncio.get_running_loop().call_later(self._margin / REARMED, self.start)

    def cancel(self) -> None:
        """The process may stand still again."""
        if self._next is not None:
            self._next.cancel()
            faulthandler.cancel_dump_traceback_later()
