"""THE LOOP: one step after the other, top down."""

import contextlib
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from asyncrl.algorithms.balance import mini_batches
from asyncrl.config.schema import Config
from asyncrl.data.dataset import PromptStream
from asyncrl.errors import RunFailed, WeightSyncError
from asyncrl.runtime.host import Host
from asyncrl.runtime.tasks import running
from asyncrl.trainer.batch import KVBatchMeta, collect, cut
from asyncrl.trainer.checkpoint import Checkpoints
from asyncrl.trainer.feeder import Feeder
from asyncrl.trainer.ledger import Ledger
from asyncrl.trainer.replay_buffer import ReplayBuffer
from asyncrl.trainer.report import Number, Sample, StepReport
from asyncrl.trainer.schedule import Schedule
from asyncrl.trainer.stages import Stages
from asyncrl.trainer.validation import Validation
from asyncrl.transfer_queue.client import TransferQueue
from asyncrl.workers.fields import GENERATIONS_SHOWN, REPORT
from asyncrl.workers.meta import BatchMeta

GENERATIONS = 4
"""Sampled answers that are written down at each step."""


class Trackers(Protocol):
    """Where the numbers of a step go."""

    def log(self, step: int, numbers: dict[str, Number]) -> None: ...

    def generations(self, step: int, samples: Sequence[Sample]) -> None: ...

    def resume(self, step: int) -> None: ...


@dataclass(frozen=True, slots=True)
class Parts:
    """What the loop drives; none of them knows the loop."""

    host: Host
    queue: TransferQueue
    stages: Stages
    prompts: PromptStream
    feeder: Feeder
    replay: ReplayBuffer
    validation: Validation
    validation_replay: ReplayBuffer
    ledger: Ledger
    checkpoints: Checkpoints
    schedule: Schedule
    trackers: Trackers
    say: Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Cuts:
    """A batch cut for the ranks, into the mini-batches of each role that learns; nothing for a critic that is not there."""

    policy: list[BatchMeta]
    critic: list[BatchMeta]


class Trainer:
    """Trains for ``total_steps`` steps; version k is published at the end of step k."""

    def __init__(self, config: Config, parts: Parts, ranks: int, total_steps: int) -> None:
        self.config, self.ranks, self.total_steps = config, ranks, total_steps
        self.step = 0
        self.digest = ""
        self.parts = parts

    async def run(self) -> None:
        """The whole run. Raises RunFailed when it cannot go on."""
        async with self.started():
            while self.step < self.total_steps and not self.config.trainer.val_only:
                report = await self.train_step()
                if self.due(self.config.trainer.test_freq):
                    await self._validate(report)
                self.parts.trackers.log(self.step, report.numbers)

    @contextlib.asynccontextmanager
    async def started(self) -> AsyncIterator[None]:
        """A block in which steps can be trained: weights are published, and the replay buffers follow the queue."""
        async with running(self.parts.replay.run, self.parts.validation_replay.run):
            await self._begin()
            yield

    async def train_step(self) -> StepReport:
        """The next step: sample, evaluate, advantages, learn, sync, clear."""
        self.step += 1
        report = StepReport(self.step, self.parts.host)
        batch = await self._sample(report)
        cuts = self._balance(batch)
        await self._evaluate(cuts, report)
        rewards = await self._advantages(batch, cuts, report)
        await self._learn(batch, cuts, report)
        await self._save(report)
        await self._sync(report)
        await self._account(batch, rewards, report)
        await self._clear(batch, report)
        report.finish(batch, self.ranks)
        return report

    def due(self, frequency: int) -> bool:
        """Whether something with this frequency happens at this step: never for <= 0, else also at the last step."""
        return frequency > 0 and (self.step % frequency == 0 or self.step == self.total_steps)

    async def _begin(self) -> None:
        """Go on from the newest checkpoint, or start; publish the weights, and validate those of a start when asked to."""
        found = self.parts.checkpoints.newest(self.parts.say)
        if found is not None:
            self.step = await self.parts.checkpoints.restore(found)
            self.parts.trackers.resume(self.step)
            self.parts.say(f"resumed after step {self.step} from {found.folder}")
        self.digest = await self.parts.stages.publish(self.step)
        if found is not None and not self.config.trainer.val_only:
            return
        if self.config.trainer.val_before_train or self.config.trainer.val_only:
            report = StepReport(self.step, self.parts.host)
            await self._validate(report)
            self.parts.trackers.log(self.step, report.numbers)

    async def _sample(self, report: StepReport) -> KVBatchMeta:
        with report.time("gen"):
            await self._issue()
            failures = await self.parts.replay.take(self.config.data.train_batch_size)
            partition = self.parts.replay.partition_id
            rows = await self.parts.queue.kv_list(partition, {"status": "success"})
            batch = collect(partition, list(failures), rows, self.step)
            if self.parts.schedule.training_window == "sleep" and self.config.actor_rollout_ref.rollout.free_cache_engine:
                await self.parts.stages.sleep()
        self._count_failures(batch, failures, report)
        return batch

    async def _issue(self) -> None:
        """Issue as many prompts as the schedule has room for."""
        batch = self.config.data.train_batch_size
        remaining = (self.total_steps - self.step + 1) * batch
        if remaining <= 0:
            raise RunFailed(f"there is no step {self.step}: the run has {self.total_steps} (trainer.total_training_steps)")
        room = self.parts.schedule.room(batch, self.parts.ledger.counts()["in_flight"], remaining)
        prompts = self.parts.prompts.take(room)
        for uid, _ in prompts:
            self.parts.replay.table.expect(uid, self.parts.ledger.issue(uid, self.step))
        await self.parts.feeder.issue(prompts, self.step)

    def _count_failures(self, batch: KVBatchMeta, failures: dict[str, list[str]], report: StepReport) -> None:
        """Say what failed; survivors train, a step without any row is an error that names the causes."""
        causes = [f"{uid}: {cause}" for uid, found in failures.items() for cause in found]
        needs = self.parts.stages.estimation.estimator.needs
        votes: dict[int, dict[str, None]] = {place: {} for place in range(len(batch.uids))}
        for group, tag in zip(batch.groups, batch.tags, strict=True):
            votes[group][str(tag["session"])] = None
        report.numbers["training/rollout_failure/failed_sessions"] = len(causes)
        if needs.groups:
            report.numbers["training/rollout_failure/undersized_groups"] = sum(len(sessions) < 2 for sessions in votes.values())
        if needs.greedy_baseline:
            report.numbers["training/rollout_failure/groups_without_baseline"] = batch.baselines.count(None)
        if causes:
            self.parts.say(f"step {self.step}: {len(causes)} failed sessions, the first is {causes[0]}")
        if not batch.keys:
            raise RunFailed(f"step {self.step} has no row to train: " + "; ".join(causes[:8]))

    def _balance(self, batch: KVBatchMeta) -> Cuts:
        actor, critic = self.config.actor_rollout_ref.actor, self.config.critic
        policy = self._cut(batch, actor.ppo_mini_batch_size, actor.data_loader_seed if actor.shuffle else None)
        if self.parts.stages.critic is None:
            return Cuts(policy, [])
        return Cuts(policy, self._cut(batch, critic.mini_batch_size, critic.data_loader_seed if critic.shuffled else None))

    def _cut(self, batch: KVBatchMeta, size: int, shuffle_seed: int | None) -> list[BatchMeta]:
        permutation = None if shuffle_seed is None else (self.config.trainer.seed + shuffle_seed, self.step)
        return cut(batch, mini_batches(len(batch.uids), size, permutation=permutation), self.ranks)

    async def _evaluate(self, cuts: Cuts, report: StepReport) -> None:
        with report.time("old_log_prob"):
            report.add(await self.parts.stages.old_log_prob(cuts.policy))
        if self.parts.stages.reference is not None:
            with report.time("ref"):
                await self.parts.stages.ref_log_prob(cuts.policy)
        if self.parts.stages.critic is not None:
            with report.time("values"):
                await self.parts.stages.values(cuts.critic)

    async def _advantages(self, batch: KVBatchMeta, cuts: Cuts, report: StepReport) -> list[float]:
        with report.time("adv"):
            rewards, metrics = await self.parts.stages.advantages(batch, cuts.policy)
        report.add(metrics)
        return rewards

    async def _learn(self, batch: KVBatchMeta, cuts: Cuts, report: StepReport) -> None:
        """Critic, then policy, which waits for ``critic_warmup``."""
        if self.parts.stages.critic is not None:
            with report.time("update_critic"):
                report.add_learned(await self.parts.stages.update_critic(cuts.critic))
        if self.config.trainer.critic_warmup <= self.step:
            with report.time("update_actor"):
                report.add_learned(await self.parts.stages.update(cuts.policy))
        self.parts.ledger.train(batch.uids, self.step)

    async def _save(self, report: StepReport) -> None:
        if self.due(self.config.trainer.save_freq):
            with report.time("save_checkpoint"):
                await self.parts.checkpoints.save(self.step)

    async def _sync(self, report: StepReport) -> None:
        """Publish version k. Equal weights after an applied step that should have changed them are an error."""
        with report.time("update_weights"):
            digest = await self.parts.stages.publish(self.step)
        grad_norms, rates = report.series("grad_norm"), report.series("lr")
        moved = any(norm > 0 and rate > 0 for norm, rate in zip(grad_norms, rates, strict=True))
        if moved and report.numbers.get("training/optimizer_steps") and digest == self.digest:
            raise WeightSyncError(f"step {self.step} applied an optimizer step, yet the weights that the engines hold did not change")
        report.numbers["training/weights_changed"] = float(digest != self.digest)
        report.numbers["training/weight_digest"] = self.digest = digest

    async def _account(self, batch: KVBatchMeta, rewards: Sequence[float], report: StepReport) -> None:
        columns = await self.parts.queue.kv_batch_get(batch.keys, batch.partition_id, REPORT.reads)
        extras = columns["reward_extra_info"].to_list()
        report.add_batch(batch, rewards, extras, self.config.data.max_prompt_length, self.config.data.max_response_length)
        report.numbers |= {f"training/prompts/{name}": count for name, count in self.parts.ledger.counts().items()}
        report.numbers["training/epoch"] = self.parts.prompts.epoch
        await self._show_generations(batch)

    async def _show_generations(self, batch: KVBatchMeta) -> None:
        rows = range(0, len(batch.keys), max(1, len(batch.keys) // GENERATIONS))[:GENERATIONS]
        keys = [batch.keys[row] for row in rows]
        shown = await self.parts.queue.kv_batch_get(keys, batch.partition_id, GENERATIONS_SHOWN.reads)
        prompts, responses = shown["prompts"].to_list(), shown["responses"].to_list()
        samples = [
            Sample(key, prompt, response, batch.scores[row])
            for key, row, prompt, response in zip(keys, rows, prompts, responses, strict=True)
        ]
        self.parts.trackers.generations(self.step, samples)

    async def _clear(self, batch: KVBatchMeta, report: StepReport) -> None:
        with report.time("clear"):
            await self.parts.queue.kv_clear([*batch.uids, *batch.keys, *batch.greedy], batch.partition_id)

    async def _validate(self, report: StepReport) -> None:
        with report.time("testing"):
            report.numbers |= await self.parts.validation.run(self.step)
