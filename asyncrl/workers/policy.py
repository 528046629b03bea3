"""The policy of one rank: log-probs, advantages spread over tokens, updates, weight sync."""

from collections.abc import Mapping

import msgspec
from torch import Tensor

from asyncrl.algorithms.aggregation import Denominators
from asyncrl.algorithms.diagnostics import probability_difference
from asyncrl.algorithms.kl_in_reward import penalised_rewards
from asyncrl.algorithms.losses import PolicyRows
from asyncrl.algorithms.objective import ObjectiveConfig, policy_objective
from asyncrl.metrics import Mean, Metrics
from asyncrl.runtime.actor import endpoint
from asyncrl.runtime.curve import CONTROLLER
from asyncrl.tensors.batch import Batch
from asyncrl.tensors.jagged import Jagged
from asyncrl.training.engine import Progress, TrainEngine
from asyncrl.training.microbatch import MicroBatching
from asyncrl.training.sharded import POLICY
from asyncrl.weight_sync.protocol import WeightSync
from asyncrl.workers.advantages import AdvantageSettings, RowFacts, estimate, spread
from asyncrl.workers.fields import ADVANTAGES, BYPASS, KL_IN_REWARD, UPDATE
from asyncrl.workers.meta import BatchMeta
from asyncrl.workers.rank import Device, mini_batch_rows
from asyncrl.workers.trained import TrainedWorker, UpdateReport


class PolicySettings(msgspec.Struct, frozen=True, kw_only=True):
    """What an update and a log-prob pass need to know."""

    objective: ObjectiveConfig
    advantages: AdvantageSettings
    temperature: float
    epochs: int
    update_micro: MicroBatching
    evaluate_micro: MicroBatching
    loss_scale_factor: float
    use_entropy: bool
    compare_rollout: bool
    """Report how far the engine's log-probs are from the trainer's."""


class RewardPenalty(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The KL penalty applied to this rank's rows: what it cost each row, and its metrics."""

    costs: list[float]
    metrics: Metrics


class PolicyWorker(TrainedWorker):
    """Holds this rank's shard of the policy; every method that gathers weights is collective."""

    part = POLICY

    def __init__(self, device: Device, engine: TrainEngine, sync: WeightSync, settings: PolicySettings) -> None:
        super().__init__(device, engine)
        self.engine, self.sync, self.settings = engine, sync, settings

    @endpoint(collective=True, roles=(CONTROLLER,))
    async def old_log_prob(self, rows: BatchMeta) -> Metrics:
        """Write ``old_log_probs``: log-probs under the weights of now. Returns entropy and the difference to the rollout."""
        stage = self.settings.advantages.old_log_prob_stage
        batch = await self.fetch(rows, stage)
        result, metrics = await self.device.thread.run(self._old_log_prob, batch, len(rows.keys), self.context.progress)
        await self.put(rows, stage, result)
        return metrics

    @endpoint(roles=(CONTROLLER,))
    async def adopt_rollout_log_probs(self, rows: BatchMeta) -> None:
        """Write ``old_log_probs`` as the engine gave them: the bypass of the pass above."""
        batch = (await self.fetch(rows, BYPASS)).take(range(len(rows.keys)))
        await self.put(rows, BYPASS, Batch(batch.keys, {"old_log_probs": batch.jagged("rollout_log_probs")}))

    @endpoint(roles=(CONTROLLER,))
    async def kl_in_reward(self, rows: BatchMeta, coefficient: float, name: str) -> RewardPenalty:
        """Write ``token_level_rewards`` = ``rm_scores`` - coefficient * KL(old, reference); return the cost of each row."""
        batch = await self.fetch(rows, KL_IN_REWARD)
        result, penalty = await self.device.thread.run(_penalise, batch.take(range(len(rows.keys))), coefficient, name)
        await self.put(rows, KL_IN_REWARD, result)
        return penalty

    @endpoint(roles=(CONTROLLER,))
    async def spread_advantages(self, rows: BatchMeta, advantages: list[float]) -> Metrics:
        """Write ``advantages`` and ``returns``: the row's number at each of its policy tokens, 0 elsewhere."""
        batch = await self.fetch(rows, ADVANTAGES)
        result, metrics = await self.device.thread.run(spread, batch.take(range(len(rows.keys))), advantages)
        await self.put(rows, ADVANTAGES, result)
        return metrics

    @endpoint(collective=True, roles=(CONTROLLER,))
    async def estimate_advantages(self, rows: BatchMeta, facts: RowFacts) -> Metrics:
        """Write ``advantages`` and ``returns``, token by token, from the rows of all ranks."""
        settings = self.settings.advantages
        batch = (await self.fetch(rows, settings.token_stage)).take(range(len(rows.keys)))
        result, metrics = await self.device.thread.run(estimate, batch, facts, settings, self.engine.gather)
        await self.put(rows, settings.token_stage, result)
        return metrics

    @endpoint(collective=True, roles=(CONTROLLER,))
    async def update(self, rows: BatchMeta) -> UpdateReport:
        """Train on every mini-batch, ``ppo_epochs`` times; then move the learning rate on."""
        stage = UPDATE if self.settings.objective.use_kl_loss else UPDATE.without("ref_log_prob")
        batch = await self.fetch(rows, stage)
        by_update = await self.device.thread.run(self._update, batch, mini_batch_rows(rows), self.context.progress)
        return UpdateReport(by_update, len(rows.keys))

    @endpoint(collective=True, roles=(CONTROLLER,))
    async def sync_weights(self, version: int) -> str:
        """Load the policy's weights into this rank's engine as ``version``; return the digest of what the engine holds."""
        return await self.device.thread.run(self._publish, version)

    def _publish(self, version: int) -> str:
        return self.sync.publish(version, self.engine.named_parameters())

    def _old_log_prob(self, batch: Batch, real: int, progress: Progress) -> tuple[Batch, Metrics]:
        squares = self.settings.advantages.estimator.needs.sum_pi_squared
        output = self.engine.evaluate(
            batch,
            temperature=self.settings.temperature,
            micro=self.settings.evaluate_micro,
            entropy=True,
            sum_pi_squared=squares,
            progress=progress,
        )
        keep = range(real)
        log_probs, entropy = output["log_probs"].take(keep), output["entropy"].take(keep)
        rows = batch.take(keep)
        mask = rows.jagged("response_mask").padded(0).bool()
        metrics: Metrics = {}
        if self.settings.compare_rollout:
            metrics = probability_difference(rows.jagged("rollout_log_probs").padded(0.0), log_probs.padded(0.0), mask)
        chosen = entropy.padded(0.0)[mask]
        metrics |= {"actor/entropy": Mean(float(chosen.sum()), float(chosen.numel()))}
        extra = {"sum_pi_squared": output["sum_pi_squared"].take(keep)} if squares else {}
        return Batch(rows.keys, {"old_log_probs": log_probs, **extra}), metrics

    def _update(self, batch: Batch, mini_batches: list[list[int]], progress: Progress) -> list[Metrics]:
        settings = self.settings
        columns = ("response_mask", "old_log_probs", "advantages") + (("ref_log_prob",) if settings.objective.use_kl_loss else ())
        by_update = [
            self.engine.train_mini_batch(
                batch.take(positions),
                self._objective,
                temperature=settings.temperature,
                micro=settings.update_micro,
                columns=columns,
                scale=settings.loss_scale_factor,
                entropy=settings.use_entropy,
                progress=progress,
            )
            for _ in range(settings.epochs)
            for positions in mini_batches
        ]
        self.engine.scheduler_step()
        return by_update

    def _objective(
        self, log_probs: Tensor, entropy: Tensor | None, fields: Mapping[str, Tensor], denominators: Denominators
    ) -> tuple[Tensor, Metrics]:
        rows = PolicyRows(log_probs, fields["old_log_probs"], fields["advantages"], fields["response_mask"])
        return policy_objective(rows, entropy, fields.get("ref_log_prob"), self.settings.objective, denominators)


def _penalise(batch: Batch, coefficient: float, name: str) -> tuple[Batch, RewardPenalty]:
    scores = batch.jagged("rm_scores")
    judged = scores.padded(0.0)
    rewards, metrics = penalised_rewards(
        judged,
        batch.jagged("old_log_probs").padded(0.0),
        batch.jagged("ref_log_prob").padded(0.0),
        batch.jagged("response_mask").padded(0),
        coefficient=coefficient,
        kl_type=name,
    )
    result = Batch(batch.keys, {"token_level_rewards": Jagged.from_padded(rewards, scores.lengths)})
    return result, RewardPenalty((judged - rewards).sum(-1).tolist(), metrics)
