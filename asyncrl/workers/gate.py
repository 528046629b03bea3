"""Whether an engine may step: ``running`` -> ``pausing`` -> ``paused`` -> ``running``."""

import asyncio
import enum

from asyncrl.runtime.waits import FOREVER, WaitRegistry


class Gate(enum.StrEnum):
    """The states of a gate."""

    RUNNING = "running"
    PAUSING = "pausing"
    """No step begins any more; the one in progress ends, and then what the engine holds is aborted."""
    PAUSED = "paused"


class EngineGate:
    """The gate in front of one engine. Changes are plain; whoever waits looks again when ``changed`` is set.

    Others ask for ``close`` and ``open``, in their order; the engine's pump alone says ``closed``.
    """

    def __init__(self, waits: WaitRegistry) -> None:
        self.state = Gate.RUNNING
        self.changed = asyncio.Event()
        self._waits = waits
        self._settled = asyncio.Event()
        self._settled.set()
        self._aborted = 0
        # One order after the other: an opening that comes while the gate closes must not overtake it.
        self._order = asyncio.Lock()

    async def close(self) -> int:
        """Shut the gate; returns when the engine is still, with the number of requests that were aborted for it.

        A gate that is shut stays so. A caller that leaves early leaves a gate that shuts all the same.
        """
        with self._waits.waiting("device", "the end of an engine's step, for a pause", FOREVER):
            async with self._order:
                if self.state is Gate.PAUSED:
                    return 0
                self._set(Gate.PAUSING)
                await self._settled.wait()
                return self._aborted

    async def open(self) -> None:
        """Let the engine step again. Harmless for a gate that is open."""
        with self._waits.waiting("device", "the end of a pause's abort, to resume", FOREVER):
            async with self._order:
                await self._settled.wait()
                self._set(Gate.RUNNING)

    def closed(self, aborted: int) -> None:
        """The engine is still and holds nothing; ``aborted`` requests have been given back."""
        self._aborted = aborted
        self._set(Gate.PAUSED)

    def _set(self, state: Gate) -> None:
        self.state = state
        if state is Gate.PAUSING:
            self._settled.clear()
        else:
            self._settled.set()
        self.changed.set()
