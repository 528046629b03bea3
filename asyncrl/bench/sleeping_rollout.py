"""The shipped rollout worker over an engine that sleeps; its process does without torch."""

from asyncrl.bench.sleeping_engine import SleepingEngine
from asyncrl.runtime.actor import endpoint
from asyncrl.training.device_thread import DeviceThread
from asyncrl.workers.rollout import RolloutWorker


class SleepingRollout(RolloutWorker):
    """Answers after the time that an answer takes."""

    def __init__(self, seed: int, slots: int, mean: float, sigma: float) -> None:
        super().__init__(DeviceThread(), SleepingEngine(seed, slots, mean, sigma))

    @endpoint
    async def load(self, version: int) -> None:
        """Generate as ``version`` from the next step on."""
        await self.thread.run(self.engine.load, version, [])
