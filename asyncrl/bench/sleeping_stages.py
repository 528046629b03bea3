"""The stages of a step that train nothing: the policy's update takes its time, the others take none."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

from asyncrl.bench.sleeping_rollout import SleepingRollout
from asyncrl.metrics import Metrics
from asyncrl.runtime.ref import ActorRef
from asyncrl.trainer.batch import KVBatchMeta
from asyncrl.trainer.learned import Learned
from asyncrl.trainer.stages import Stages
from asyncrl.workers.meta import BatchMeta


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
