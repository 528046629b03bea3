"""An engine in a process of its own, which a test can kill."""

import asyncio
import os

from asyncrl.runtime import endpoint
from asyncrl.training.device_thread import InlineDevice
from asyncrl.trajectory import GenerateOutput
from asyncrl.workers.rollout import RolloutWorker
from tests.unit.workers.engine_room import SpyEngine


class Draft(SpyEngine):
    """Does not end an answer in its first life."""

    def __init__(self, generation: int) -> None:
        super().__init__(loaded=False)
        self.load(generation, [])
        self.few = 4 if generation == 0 else 99
        self.stuck = asyncio.Event()

    def step(self) -> list[GenerateOutput]:
        if self.steps == self.few:
            self.stuck.set()
            return []
        return super().step()


class MortalEngine(RolloutWorker):
    """A scripted engine whose version is its generation."""

    def __init__(self) -> None:
        self.draft = Draft(self.context.system.identity.generation)
        super().__init__(InlineDevice(), self.draft)

    @endpoint
    async def stuck(self) -> int:
        """Its pid, once it has made the steps of its first life."""
        await self.draft.stuck.wait()
        return os.getpid()
