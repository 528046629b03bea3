"""The stages of a step, as calls to the ranks: each takes the cut of the batch and returns merged metrics."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from asyncrl.algorithms.advantages import ESTIMATORS
from asyncrl.algorithms.advantages.votes import outcome_advantages
from asyncrl.algorithms.diagnostics import finish_probability_difference
from asyncrl.algorithms.kl_in_reward import AdaptiveKL, FixedKL
from asyncrl.config.schema.algorithm import Algorithm
from asyncrl.errors import WeightSyncError
from asyncrl.metrics import Metrics, merge
from asyncrl.runtime.group import ActorGroup
from asyncrl.trainer.batch import KVBatchMeta
from asyncrl.trajectory import TrajectoryKey
from asyncrl.workers.meta import BatchMeta
from asyncrl.workers.policy import PolicyWorker
from asyncrl.workers.reference import ReferenceWorker
from asyncrl.workers.rollout import RolloutWorker


@dataclass(slots=True)
class Stages:
    """The three roles of the ranks, behind the names of the step's stages. ``kl`` sets the weight of a KL in the reward."""

    policy: ActorGroup[PolicyWorker]
    reference: ActorGroup[ReferenceWorker] | None
    rollout: ActorGroup[RolloutWorker]
    algorithm: Algorithm
    kl: FixedKL | AdaptiveKL

    async def old_log_prob(self, shares: Sequence[BatchMeta]) -> Metrics:
        """Log-probs of every row under the weights with which the step began; in bypass mode those of the engine."""
        if self.algorithm.rollout_correction.bypass_mode:
            await self.policy.call_each(PolicyWorker.adopt_rollout_log_probs, [(share,) for share in shares])
            return {}
        parts = await self.policy.call_each(PolicyWorker.old_log_prob, [(share,) for share in shares])
        return finish_probability_difference(merge(parts))

    async def ref_log_prob(self, shares: Sequence[BatchMeta]) -> None:
        """Log-probs of every row under the reference, when something needs them."""
        if self.reference is not None:
            await self.reference.call_each(ReferenceWorker.ref_log_prob, [(share,) for share in shares])

    async def advantages(self, batch: KVBatchMeta, shares: Sequence[BatchMeta]) -> tuple[list[float], Metrics]:
        """One advantage per row, spread over its policy tokens on the ranks. Returns the rewards of the rows as trained."""
        metrics: Metrics = {}
        scores = dict(zip(batch.keys, batch.scores, strict=True))
        if self.algorithm.use_kl_in_reward:
            scores, metrics = await self._kl_in_reward(shares)
        names = [TrajectoryKey.parse(key) for key in batch.keys]
        rewards = [scores[key] for key in batch.keys]
        numbers = _session_numbers(names)
        estimate = ESTIMATORS[self.algorithm.adv_estimator]
        advantages = outcome_advantages(
            lambda votes, groups: estimate(votes, groups, normalise_by_std=self.algorithm.norm_adv_by_std_in_grpo),
            torch.tensor(rewards, dtype=torch.float32),
            torch.tensor(batch.groups, dtype=torch.int64),
            torch.tensor(numbers, dtype=torch.int64),
            torch.tensor([name.index for name in names], dtype=torch.int64),
        ).tolist()
        by_key = dict(zip(batch.keys, advantages, strict=True))
        calls = [(share, [by_key[key] for key in share.keys]) for share in shares]
        metrics = merge([metrics, *await self.policy.call_each(PolicyWorker.spread_advantages, calls)])
        return rewards, metrics

    async def update(self, shares: Sequence[BatchMeta]) -> tuple[list[Metrics], int]:
        """Every optimizer step of the local update. Returns the metrics of each, and how many rows were trained."""
        reports = await self.policy.call_each(PolicyWorker.update, [(share,) for share in shares])
        by_update = [merge(step) for step in zip(*(report.by_update for report in reports), strict=True)]
        return by_update, sum(report.rows for report in reports)

    async def publish(self, version: int) -> str:
        """Give the policy's weights to every engine as ``version``; return the digest that all of them acknowledge."""
        digests = await self.policy.call_all(PolicyWorker.sync_weights, version)
        if len(dict.fromkeys(digests)) != 1:
            raise WeightSyncError(f"engines hold different weights of version {version}: {digests}")
        return digests[0]

    async def save(self, folder: str) -> int:
        """Let every rank write its shards into ``folder``; return how often the learning rate has moved."""
        return (await self.policy.call_all(PolicyWorker.save, folder))[0]

    async def restore(self, folder: str, moves: int) -> None:
        """Let every rank read its shards from a verified ``folder``."""
        await self.policy.call_all(PolicyWorker.restore, folder, moves)

    def restore_kl(self, coefficient: float) -> None:
        """Go on with the KL weight of a checkpoint."""
        self.kl = replace(self.kl, coefficient=coefficient)

    async def sleep(self) -> None:
        """Let the engines free their caches while the policy trains."""
        await self.rollout.call_all(RolloutWorker.sleep)

    async def _kl_in_reward(self, shares: Sequence[BatchMeta]) -> tuple[dict[str, float], Metrics]:
        calls = [(share, self.kl.coefficient, self.algorithm.kl_penalty) for share in shares]
        answers = await self.policy.call_each(PolicyWorker.kl_in_reward, calls)
        scores: dict[str, float] = {}
        for share, answer in zip(shares, answers, strict=True):
            scores |= dict(zip(share.keys, answer.scores, strict=True))
        metrics = merge(answer.metrics for answer in answers)
        self.kl = self.kl.updated(metrics["actor/reward_kl_penalty"].value(), len(scores))
        return scores, metrics


def _session_numbers(names: Sequence[TrajectoryKey]) -> list[int]:
    """A number per row that two rows share when they belong to one session of one prompt."""
    numbers: dict[tuple[str, str], int] = {}
    return [numbers.setdefault((name.uid, name.session), len(numbers)) for name in names]
