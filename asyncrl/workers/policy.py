"""The policy of one rank: log-probs, advantages spread over tokens, updates, weight sync."""

import contextlib
from collections.abc import Mapping
from functools import partial

import msgspec
from torch import Tensor

from asyncrl.algorithms.aggregation import Denominators
from asyncrl.algorithms.diagnostics import probability_difference
from asyncrl.algorithms.kl_in_reward import penalised_rewards
from asyncrl.algorithms.objective import ObjectiveConfig, policy_objective
from asyncrl.algorithms.rollout_correction import RolloutCorrectionOptions, effective_sample_size, off_policy_metrics
from asyncrl.metrics import Mean, Metrics
from asyncrl.runtime.actor import endpoint
from asyncrl.runtime.curve import CONTROLLER
from asyncrl.tensors.batch import Batch
from asyncrl.tensors.jagged import Jagged
from asyncrl.training.anchor import Anchor
from asyncrl.training.engine import Progress, TrainEngine
from asyncrl.training.microbatch import MicroBatching
from asyncrl.training.sharded import POLICY
from asyncrl.weight_sync.protocol import WeightSync
from asyncrl.workers.advantages import AdvantageSettings, RowFacts, estimate, spread
from asyncrl.workers.correction import CorrectionReport, corrected, correction_stage
from asyncrl.workers.fields import ADVANTAGES, BYPASS, KL_IN_REWARD, UPDATE, Stage
from asyncrl.workers.meta import BatchMeta
from asyncrl.workers.preparation import OPTIONAL, policy_rows, prepared
from asyncrl.workers.rank import Device, mini_batch_rows
from asyncrl.workers.trained import TrainedWorker, UpdateReport


class PolicySettings(msgspec.Struct, frozen=True, kw_only=True):
    """What an update and a log-prob pass need to know."""

    objective: ObjectiveConfig
    correction: RolloutCorrectionOptions | None
    """What is corrected before the advantages; None for nothing."""
    denominator: str
    """The mask whose ones and rows a loss is divided by."""
    advantages: AdvantageSettings
    seed: int
    temperature: float
    epochs: int
    update_micro: MicroBatching
    evaluate_micro: MicroBatching
    loss_scale_factor: float
    use_entropy: bool
    compare_rollout: bool
    """Report how far the engine's log-probs are from the trainer's."""

    @property
    def update_stage(self) -> Stage:
        """The stage of an update, with the fields that the loss reads."""
        asked = {
            "ref_log_prob": self.objective.use_kl_loss,
            "rollout_is_weights": self.correction is not None and self.correction.rollout_is is not None,
            # A loss that rejects by itself has the mask before from its own first phase.
            "loss_mask": self.correction is not None and self.denominator == "loss_mask",
        }
        return UPDATE.without(*(name for name, needed in asked.items() if not needed))


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
        self._anchor: Anchor | None = None

    @endpoint(roles=(CONTROLLER,))
    async def anchor(self) -> None:
        """Keep a copy of the weights as they are now: until ``release_anchor``, ``old_log_prob`` is of these."""
        self._anchor = await self.device.thread.run(lambda: Anchor(self.engine.named_parameters()))

    @endpoint(roles=(CONTROLLER,))
    async def release_anchor(self) -> None:
        """Free the copy. Harmless without one."""
        self._anchor = None

    @endpoint(collective=True, roles=(CONTROLLER,))
    async def old_log_prob(self, rows: BatchMeta) -> Metrics:
        """Write ``old_log_probs``: log-probs under the anchored weights, else under those of now.

        Returns entropy and the difference to the rollout.
        """
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

    @endpoint(collective=True, roles=(CONTROLLER,))
    async def correct_rollout(self, rows: BatchMeta) -> CorrectionReport:
        """Write importance weights, and the mask after rejection with the one before beside it."""
        assert self.settings.correction is not None
        stage = correction_stage(self.settings.correction)
        batch = (await self.fetch(rows, stage)).take(range(len(rows.keys)))
        result, report = await self.device.thread.run(corrected, batch, self.settings.correction, self.engine.gather)
        await self.put(rows, stage, result)
        return report

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
        batch = await self.fetch(rows, self.settings.update_stage)
        by_update = await self.device.thread.run(self._update, batch, mini_batch_rows(rows), rows.step, self.context.progress)
        return UpdateReport(by_update, len(rows.keys))

    @endpoint(collective=True, roles=(CONTROLLER,))
    async def sync_weights(self, version: int) -> str:
        """Load the policy's weights into this rank's engine as ``version``; return the digest of what the engine holds."""
        return await self.device.thread.run(self._publish, version)

    def _publish(self, version: int) -> str:
        return self.sync.publish(version, self.engine.named_parameters())

    def _old_log_prob(self, batch: Batch, real: int, progress: Progress) -> tuple[Batch, Metrics]:
        squares = self.settings.advantages.estimator.needs.sum_pi_squared
        with contextlib.nullcontext() if self._anchor is None else self._anchor.in_place():
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
            rollout = rows.jagged("rollout_log_probs").padded(0.0)
            metrics = probability_difference(rollout, log_probs.padded(0.0), mask) | effective_sample_size(
                log_probs.padded(0.0), rollout, mask
            )
            if self.settings.correction is None:  # which reports the same and more
                metrics |= off_policy_metrics(log_probs.padded(0.0), rollout, mask)
        chosen = entropy.padded(0.0)[mask]
        metrics |= {"actor/entropy": Mean(float(chosen.sum()), float(chosen.numel()))}
        extra = {"sum_pi_squared": output["sum_pi_squared"].take(keep)} if squares else {}
        return Batch(rows.keys, {"old_log_probs": log_probs, **extra}), metrics

    def _update(self, batch: Batch, mini_batches: list[list[int]], step: int, progress: Progress) -> list[Metrics]:
        by_update = [
            self._train(batch.take(positions), (self.settings.seed, step, epoch), progress)
            for epoch in range(self.settings.epochs)
            for positions in mini_batches
        ]
        self.engine.scheduler_step()
        return by_update

    def _train(self, rows: Batch, place: tuple[int, int, int], progress: Progress) -> Metrics:
        """One optimizer step; ``place`` is seed, step and pass."""
        settings = self.settings
        metrics: Metrics = {}
        if settings.objective.needs_preparation:
            rows, metrics = prepared(rows, partial(self._log_probs, progress), settings.objective, place, self.engine.gather)
        columns = ("response_mask", "old_log_probs", "advantages", *(name for name in ("ref_log_prob", *OPTIONAL) if name in rows.fields))
        return metrics | self.engine.train_mini_batch(
            rows,
            self._objective,
            temperature=settings.temperature,
            micro=settings.update_micro,
            columns=columns,
            scale=settings.loss_scale_factor,
            denominator=settings.denominator,
            entropy=settings.use_entropy,
            progress=progress,
        )

    def _log_probs(self, progress: Progress, rows: Batch) -> Jagged:
        """Log-probs under the weights of now."""
        settings = self.settings
        output = self.engine.evaluate(rows, temperature=settings.temperature, micro=settings.evaluate_micro, progress=progress)
        return output["log_probs"]

    def _objective(
        self, log_probs: Tensor, entropy: Tensor | None, fields: Mapping[str, Tensor], denominators: Denominators
    ) -> tuple[Tensor, Metrics]:
        rows = policy_rows(log_probs, fields)
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
