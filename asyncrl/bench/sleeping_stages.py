"""The stages of a step that train nothing: the policy's update takes its time, the others take none."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

from asyncrl.bench.sleeping_engine import SleepingEngine
from asyncrl.metrics import Metrics
from asyncrl.runtime.actor import endpoint
from asyncrl.runtime.ref import ActorRef
from asyncrl.trainer.batch import KVBatchMeta
from asyncrl.trainer.learned import Learned
from asyncrl.trainer.stages import Stages
from asyncrl.training.device_thread import DeviceThread
from asyncrl.workers.meta import BatchMeta
from asyncrl.workers.rollout import RolloutWorker


class SleepingRollout(RolloutWorker):
    """The shipped rollout worker over an engine that sleeps."""

    def __init__(self, seed: int, slots: int, mean: float, sigma: float) -> None:
        super().__init__(DeviceThread(), SleepingEngine(seed, slots, mean, sigma))

    @endpoint
    async def load(self, version: int) -> None:
        """Generate as ``version`` from the next step on."""
        await self.thread.run(self.engine.load, version, [])


@dataclass(slots=True)
class SleepingStages(Stages):
    """The shipped stages with a training window of ``training`` seconds."""

    training: float
    engine: ActorRef[SleepingRollout]

    async def old_log_prob(self, shares: Sequence[BatchMeta]) -> Metrics:
        return {}

    async def advantages(self, batch: KVBatchMeta, shares: Sequence[BatchMeta]) -> tuple[list[float], Metrics]:
        return batch.scores, {}

    async def update(self, shares: Sequence[BatchMeta]) -> Learned:
        await asyncio.sleep(self.training)
        return Learned([], {}, sum(len(share.keys) for share in shares))

    async def publish(self, version: int) -> str:
        await self.engine.call(SleepingRollout.load, version)
        return str(version)
