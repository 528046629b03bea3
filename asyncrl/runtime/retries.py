"""Pauses between the tries of what no event can tell to be possible again, as a connection to an address where nobody listens."""

import asyncio

FIRST = 0.1


class Retries:
    """The first pause takes 0.1 s, each further one twice as long as the one before, ``longest`` at most."""

    def __init__(self, longest: float) -> None:
        self._longest = longest
        self._next = FIRST

    async def pause(self) -> None:
        """The pause before the next try. Cancelling ends it."""
        seconds = self._next
        self._next = min(2 * seconds, self._longest)
        await asyncio.sleep(seconds)

    def succeeded(self) -> None:
        """The next pause is a short one again."""
        self._next = FIRST
