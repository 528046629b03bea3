"""The stages of a step, as calls to the ranks: each takes the cut of the batch and returns merged metrics."""

import functools
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from asyncrl.algorithms.advantages import TokenEstimator, multi_output
from asyncrl.algorithms.kl_in_reward import AdaptiveKL, FixedKL
from asyncrl.config.schema.algorithm import Algorithm
from asyncrl.errors import ActorDied, CallTimedOut, Undeliverable, WeightSyncError
from asyncrl.metrics import Metrics, merge
from asyncrl.runtime.group import ActorGroup
from asyncrl.runtime.ref import ActorRef
from asyncrl.runtime.tasks import all_of
from asyncrl.trainer.batch import KVBatchMeta
from asyncrl.trainer.estimate import outcome_rows, row_facts
from asyncrl.trainer.learned import Learned
from asyncrl.trainer.pauses import pause_living, resume_living
from asyncrl.transfer_queue.client import TransferQueue
from asyncrl.workers.advantages import AdvantageSettings
from asyncrl.workers.critic import CriticWorker
from asyncrl.workers.fields import COMPONENTS
from asyncrl.workers.fleet import EngineFleet
from asyncrl.workers.meta import BatchMeta
from asyncrl.workers.policy import PolicyWorker
from asyncrl.workers.reference import ReferenceWorker
from asyncrl.workers.rollout import RolloutWorker
from asyncrl.workers.usage import EngineUsage

USAGE_SECONDS = 10.0
"""How long an engine may take to say what it did; its event loop is free whatever its device does."""


@dataclass(frozen=True, slots=True)
class ScheduleMoves:
    """How often the learning rate of each role has moved."""

    policy: int
    critic: int = 0


@dataclass(slots=True)
class Stages:
    """The roles of the ranks, behind the names of the step's stages. ``kl`` sets the weight of a KL in the reward."""

    policy: ActorGroup[PolicyWorker]
    reference: ActorGroup[ReferenceWorker] | None
    critic: ActorGroup[CriticWorker] | None
    rollout: ActorGroup[RolloutWorker]
    queue: TransferQueue
    algorithm: Algorithm
    estimation: AdvantageSettings
    kl: FixedKL | AdaptiveKL
    fleet: ActorRef[EngineFleet] | None
    """Who brings weights to engines in processes of their own; None where each rank fills its own engine."""

    async def old_log_prob(self, shares: Sequence[BatchMeta]) -> Metrics:
        """Log-probs of every row under the weights with which the step began; in bypass mode those of the engine."""
        if self.algorithm.rollout_correction.bypass_mode:
            await self.policy.call_each(PolicyWorker.adopt_rollout_log_probs, [(share,) for share in shares])
            return {}
        parts = await self.policy.call_each(PolicyWorker.old_log_prob, [(share,) for share in shares])
        return merge(parts)

    async def ref_log_prob(self, shares: Sequence[BatchMeta]) -> None:
        """Log-probs of every row under the reference, when something needs them."""
        if self.reference is not None:
            await self.reference.call_each(ReferenceWorker.ref_log_prob, [(share,) for share in shares])

    async def values(self, shares: Sequence[BatchMeta]) -> None:
        """What the critic expects before each token of every row, when there is a critic."""
        if self.critic is not None:
            await self.critic.call_each(CriticWorker.values, [(share,) for share in shares])

    async def advantages(self, batch: KVBatchMeta, shares: Sequence[BatchMeta]) -> tuple[list[float], Metrics]:
        """Advantages of every row, written by the ranks. Returns the rewards of the rows as trained.

        An estimator of outcomes gives one number a row, here, which is spread over the policy tokens; one of tokens runs where
        the tokens lie.
        """
        metrics: Metrics = {}
        rewards = batch.scores
        if self.algorithm.use_kl_in_reward:
            costs, metrics = await self._kl_in_reward(shares)
            # Not the sum of the tokens' rewards: an answer without tokens has its score all the same.
            rewards = [score - costs[key] for key, score in zip(batch.keys, rewards, strict=True)]
        if self.algorithm.rollout_correction.decoupled:
            batch, corrected = await self._correct_rollout(batch, shares)
            metrics = merge([metrics, corrected])
        estimator, options = self.estimation.estimator, self.estimation.options
        if isinstance(estimator, TokenEstimator):
            estimates = list(zip(shares, row_facts(batch, shares), strict=True))
            parts = await self.policy.call_each(PolicyWorker.estimate_advantages, estimates)
        else:
            rows = outcome_rows(batch, rewards, await self._components(batch))
            advantages = multi_output(estimator, votes="last")(rows, options).tolist()
            by_key = dict(zip(batch.keys, advantages, strict=True))
            calls = [(share, [by_key[key] for key in share.keys]) for share in shares]
            parts = await self.policy.call_each(PolicyWorker.spread_advantages, calls)
        return rewards, merge([metrics, *parts])

    async def update_critic(self, shares: Sequence[BatchMeta]) -> Learned:
        """Every optimizer step of the critic's local update. There must be one."""
        assert self.critic is not None
        return Learned.of(await self.critic.call_each(CriticWorker.update, [(share,) for share in shares]))

    async def update(self, shares: Sequence[BatchMeta]) -> Learned:
        """Every optimizer step of the policy's local update."""
        return Learned.of(await self.policy.call_each(PolicyWorker.update, [(share,) for share in shares]))

    async def publish(self, version: int) -> str:
        """Give the policy's weights to every engine as ``version``; return the digest that all of them acknowledge."""
        digests = await self.policy.call_all(PolicyWorker.sync_weights, version)
        if len(dict.fromkeys(digests)) != 1:
            raise WeightSyncError(f"the ranks give different weights as version {version}: {digests}")
        if self.fleet is not None:
            await self.fleet.call(EngineFleet.publish, version, digests[0])
        return digests[0]

    async def save(self, folder: str) -> ScheduleMoves:
        """Let every rank copy its shards and begin to write them into ``folder``; return how often the learning rates have moved."""
        policy = (await self.policy.call_all(PolicyWorker.save, folder))[0]
        critic = 0 if self.critic is None else (await self.critic.call_all(CriticWorker.save, folder))[0]
        return ScheduleMoves(policy, critic)

    async def saved(self) -> None:
        """Return when every rank has written what ``save`` began. Raises CallFailed with the cause when one cannot."""
        await self.policy.call_all(PolicyWorker.saved)
        if self.critic is not None:
            await self.critic.call_all(CriticWorker.saved)

    async def restore(self, folder: str, moves: ScheduleMoves) -> None:
        """Let every rank read its shards from a verified ``folder``: those of the policy, then those of the critic."""
        await self.policy.call_all(PolicyWorker.restore, folder, moves.policy)
        if self.critic is not None:
            await self.critic.call_all(CriticWorker.restore, folder, moves.critic)

    def restore_kl(self, coefficient: float) -> None:
        """Go on with the KL weight of a checkpoint."""
        self.kl = replace(self.kl, coefficient=coefficient)

    async def anchor(self) -> None:
        """Keep the weights of now as those under which ``old_log_probs`` are taken, until ``release_anchor``."""
        if not self.algorithm.rollout_correction.bypass_mode:
            await self.policy.call_all(PolicyWorker.anchor)

    async def release_anchor(self) -> None:
        """Forget the kept weights."""
        if not self.algorithm.rollout_correction.bypass_mode:
            await self.policy.call_all(PolicyWorker.release_anchor)

    async def pause(self) -> None:
        """Abort what the engines generate; the clients keep the tokens and go on with them after ``resume``.

        An engine in a process of its own that is down, or dies meanwhile, is left out.
        """
        if self.fleet is None:
            await self.rollout.call_all(RolloutWorker.pause)
        else:
            await pause_living(self.rollout.refs, self.fleet)

    async def resume(self) -> None:
        """Let the engines generate again; those that are down begin their next life unpaused."""
        if self.fleet is None:
            await self.rollout.call_all(RolloutWorker.resume)
        else:
            await resume_living(self.rollout.refs, self.fleet)

    async def engine_usage(self) -> list[EngineUsage]:
        """What each engine did since the last call. One that does not answer, as it is started again, is left out."""
        return await usage_of(self.rollout.refs)

    async def sleep(self) -> None:
        """Let the engines free their caches while the policy trains."""
        await self.rollout.call_all(RolloutWorker.sleep)

    async def _kl_in_reward(self, shares: Sequence[BatchMeta]) -> tuple[dict[str, float], Metrics]:
        calls = [(share, self.kl.coefficient, self.algorithm.kl_penalty) for share in shares]
        answers = await self.policy.call_each(PolicyWorker.kl_in_reward, calls)
        costs: dict[str, float] = {}
        for share, answer in zip(shares, answers, strict=True):
            costs |= dict(zip(share.keys, answer.costs, strict=True))
        metrics = merge(answer.metrics for answer in answers)
        self.kl = self.kl.updated(metrics["actor/reward_kl_penalty"].value(), len(costs))
        return costs, metrics

    async def _correct_rollout(self, batch: KVBatchMeta, shares: Sequence[BatchMeta]) -> tuple[KVBatchMeta, Metrics]:
        """The batch with the trainable tokens that rejection left to each row."""
        reports = await self.policy.call_each(PolicyWorker.correct_rollout, [(share,) for share in shares])
        left: dict[str, int] = {}
        for share, report in zip(shares, reports, strict=True):
            left |= dict(zip(share.keys, report.trainable, strict=True))
        tags = tuple({**tag, "trainable_len": left[key]} for key, tag in zip(batch.keys, batch.tags, strict=True))
        return replace(batch, tags=tags), merge(report.metrics for report in reports)

    async def _components(self, batch: KVBatchMeta) -> dict[str, Tensor]:
        """The parts of the reward that the estimator compares, [N] by name."""
        names = [name for name, _ in self.estimation.options.components]
        if not (self.estimation.estimator.needs.reward_components and names):
            return {}
        columns = await self.queue.kv_batch_get(batch.keys, batch.partition_id, COMPONENTS.reads)
        table = torch.tensor(columns["reward_components"].to_list(), dtype=torch.float32).view(-1, len(names))
        return dict(zip(names, table.unbind(-1), strict=True))


async def usage_of(engines: Sequence[ActorRef[RolloutWorker]]) -> list[EngineUsage]:
    """The usage of the engines that answer."""

    async def ask(engine: ActorRef[RolloutWorker]) -> EngineUsage | None:
        try:
            return await engine.with_deadline(USAGE_SECONDS).call(RolloutWorker.take_usage)
        except (ActorDied, CallTimedOut, Undeliverable):
            return None

    found = await all_of([functools.partial(ask, engine) for engine in engines])
    return [usage for usage in found if usage is not None]
