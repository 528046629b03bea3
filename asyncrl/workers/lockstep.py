"""Sessions that ask the engines together, for full determinism."""

import asyncio

from asyncrl.runtime.waits import FOREVER, WaitRegistry


class Lockstep:
    """Lets sessions ask the engines only when all of them are ready to ask.

    So what reaches an engine together depends on the sessions alone, not on how fast each of them is.
    """

    def __init__(self, waits: WaitRegistry) -> None:
        self._waits = waits
        self._active = 0
        self._arrived: list[asyncio.Future[None]] = []

    def enter(self, sessions: int) -> None:
        """So many sessions will ask, or leave."""
        self._active += sessions

    def leave(self, sessions: int = 1) -> None:
        """So many sessions will not ask any more."""
        self._active -= sessions
        self._release()

    async def turn(self) -> None:
        """Wait until every session that has not left waits here. One that asks twice at once counts as two, so that it never waits
        for sessions that are not there."""
        arrival: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._arrived.append(arrival)
        self._release()
        with self._waits.waiting("sessions", "all of them to ask, for full determinism", FOREVER):
            await arrival

    def _release(self) -> None:
        self._arrived = [arrival for arrival in self._arrived if not arrival.done()]
        if len(self._arrived) >= self._active:
            for arrival in self._arrived:
                arrival.set_result(None)
            self._arrived = []
