"""The policy of one rank: log-probs, advantages spread over tokens, updates, weight sync."""

from collections.abc import Mapping
from pathlib import Path

import msgspec
import torch
from torch import Tensor

from asyncrl.algorithms.aggregation import Denominators
from asyncrl.algorithms.diagnostics import probability_difference
from asyncrl.algorithms.kl_in_reward import penalised_rewards
from asyncrl.algorithms.objective import ObjectiveConfig, policy_objective
from asyncrl.metrics import Max, Mean, Metrics, Min
from asyncrl.runtime.actor import endpoint
from asyncrl.tensors.batch import Batch
from asyncrl.tensors.jagged import Jagged
from asyncrl.training.engine import Progress, TrainEngine
from asyncrl.training.export import save_weights
from asyncrl.training.microbatch import MicroBatching
from asyncrl.training.sharded import load_engine, save_engine
from asyncrl.weight_sync.in_place import gather_flat
from asyncrl.weight_sync.protocol import WeightSync
from asyncrl.workers.fields import ADVANTAGES, BYPASS, KL_IN_REWARD, OLD_LOG_PROB, UPDATE, UPDATE_WITH_REFERENCE
from asyncrl.workers.meta import BatchMeta
from asyncrl.workers.rank import Device, QueueWorker, mini_batch_rows


class PolicySettings(msgspec.Struct, frozen=True, kw_only=True):
    """What an update and a log-prob pass need to know."""

    objective: ObjectiveConfig
    temperature: float
    epochs: int
    update_micro: MicroBatching
    evaluate_micro: MicroBatching
    loss_scale_factor: float
    use_entropy: bool
    compare_rollout: bool
    """Report how far the engine's log-probs are from the trainer's."""


class RewardPenalty(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The KL penalty applied to this rank's rows: the penalised score of each row, and what it cost."""

    scores: list[float]
    metrics: Metrics


class UpdateReport(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """This rank's part of a local update: metrics of each optimizer step, and the rows that were trained."""

    by_update: list[Metrics]
    rows: int


class PolicyWorker(QueueWorker):
    """Holds this rank's shard of the policy; every method that gathers weights is collective."""

    def __init__(self, device: Device, engine: TrainEngine, sync: WeightSync, settings: PolicySettings) -> None:
        super().__init__(device)
        self.engine, self.sync, self.settings = engine, sync, settings

    @endpoint(collective=True)
    async def old_log_prob(self, rows: BatchMeta) -> Metrics:
        """Write ``old_log_probs``: log-probs under the weights of now. Returns entropy and the difference to the rollout."""
        batch = await self.fetch(rows, OLD_LOG_PROB)
        result, metrics = await self.device.thread.run(self._old_log_prob, batch, len(rows.keys), self.context.progress)
        await self.put(rows, OLD_LOG_PROB, result)
        return metrics

    @endpoint
    async def adopt_rollout_log_probs(self, rows: BatchMeta) -> None:
        """Write ``old_log_probs`` as the engine gave them: the bypass of the pass above."""
        batch = (await self.fetch(rows, BYPASS)).take(range(len(rows.keys)))
        await self.put(rows, BYPASS, Batch(batch.keys, {"old_log_probs": batch.jagged("rollout_log_probs")}))

    @endpoint
    async def kl_in_reward(self, rows: BatchMeta, coefficient: float, name: str) -> RewardPenalty:
        """Write ``token_level_rewards`` = ``rm_scores`` - coefficient * KL(old, reference); return the sum per row."""
        batch = await self.fetch(rows, KL_IN_REWARD)
        result, penalty = await self.device.thread.run(_penalise, batch.take(range(len(rows.keys))), coefficient, name)
        await self.put(rows, KL_IN_REWARD, result)
        return penalty

    @endpoint
    async def spread_advantages(self, rows: BatchMeta, advantages: list[float]) -> Metrics:
        """Write ``advantages`` and ``returns``: the row's number at each of its policy tokens, 0 elsewhere."""
        batch = await self.fetch(rows, ADVANTAGES)
        result, metrics = await self.device.thread.run(_spread, batch.take(range(len(rows.keys))), advantages)
        await self.put(rows, ADVANTAGES, result)
        return metrics

    @endpoint(collective=True)
    async def update(self, rows: BatchMeta) -> UpdateReport:
        """Train on every mini-batch, ``ppo_epochs`` times; then move the learning rate on."""
        stage = UPDATE_WITH_REFERENCE if self.settings.objective.use_kl_loss else UPDATE
        batch = await self.fetch(rows, stage)
        by_update = await self.device.thread.run(self._update, batch, mini_batch_rows(rows), self.context.progress)
        return UpdateReport(by_update, len(rows.keys))

    @endpoint(collective=True)
    async def sync_weights(self, version: int) -> str:
        """Load the policy's weights into this rank's engine as ``version``; return the digest of what the engine holds."""
        return await self.device.thread.run(self._publish, version)

    @endpoint(collective=True)
    async def save(self, folder: str) -> int:
        """Write this rank's part of a checkpoint; return how often the learning rate has moved."""
        return await self.device.thread.run(save_engine, self.engine, folder)

    @endpoint(collective=True)
    async def restore(self, folder: str, moves: int) -> None:
        """Read this rank's part of a verified checkpoint."""
        await self.device.thread.run(load_engine, self.engine, folder, moves)

    @endpoint(collective=True)
    async def export(self, file: str, write: bool) -> None:
        """Gather the whole weights; the rank that is told to ``write`` puts them into a safetensors file."""
        await self.device.thread.run(self._export, Path(file) if write else None)

    def _export(self, file: Path | None) -> None:
        weights = gather_flat(self.engine.named_parameters())
        if file is not None:
            save_weights(weights, file)

    def _publish(self, version: int) -> str:
        return self.sync.publish(version, self.engine.named_parameters())

    def _old_log_prob(self, batch: Batch, real: int, progress: Progress) -> tuple[Batch, Metrics]:
        output = self.engine.evaluate(
            batch, temperature=self.settings.temperature, micro=self.settings.evaluate_micro, entropy=True, progress=progress
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
        return Batch(rows.keys, {"old_log_probs": log_probs}), metrics

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
        return policy_objective(
            log_probs,
            entropy,
            fields["old_log_probs"],
            fields["advantages"],
            fields["response_mask"],
            fields.get("ref_log_prob"),
            self.settings.objective,
            denominators,
        )


def _penalise(batch: Batch, coefficient: float, name: str) -> tuple[Batch, RewardPenalty]:
    scores = batch.jagged("rm_scores")
    rewards, metrics = penalised_rewards(
        scores.padded(0.0),
        batch.jagged("old_log_probs").padded(0.0),
        batch.jagged("ref_log_prob").padded(0.0),
        batch.jagged("response_mask").padded(0),
        coefficient=coefficient,
        kl_type=name,
    )
    result = Batch(batch.keys, {"token_level_rewards": Jagged.from_padded(rewards, scores.lengths)})
    return result, RewardPenalty(rewards.sum(-1).tolist(), metrics)


def _spread(batch: Batch, advantages: list[float]) -> tuple[Batch, Metrics]:
    mask = batch.jagged("response_mask")
    rows = torch.tensor(advantages, dtype=torch.float32)
    values = torch.repeat_interleave(rows, mask.lengths) * (mask.values != 0)
    spread = Jagged(values, mask.offsets)
    chosen = values[mask.values != 0]
    metrics: Metrics = {}
    if chosen.numel():
        total, largest, smallest = float(chosen.sum()), float(chosen.max()), float(chosen.min())
        for name in ("critic/advantages", "critic/returns"):
            metrics |= {f"{name}/mean": Mean(total, chosen.numel()), f"{name}/max": Max(largest), f"{name}/min": Min(smallest)}
    return Batch(batch.keys, {"advantages": spread, "returns": spread}), metrics
