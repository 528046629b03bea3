"""THE LOOP: one step after the other, top down."""

import asyncio
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
from asyncrl.trainer.batch import KVBatchMeta, collect, cut, joined
from asyncrl.trainer.checkpoint import Checkpoints
from asyncrl.trainer.flow import PromptFlow
from asyncrl.trainer.replay_buffer import ReplayBuffer
from asyncrl.trainer.report import Number, Sample, StepReport
from asyncrl.trainer.sampler import Ask
from asyncrl.trainer.schedule import Schedule
from asyncrl.trainer.stages import Stages
from asyncrl.trainer.validation import Validation
from asyncrl.trajectory import PartialGroup
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
    flow: PromptFlow
    replay: ReplayBuffer
    validation: Validation
    validation_replay: ReplayBuffer
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
        self._uncleared: list[str] = []
        """Rows of the partition ``train`` that were trained, and are still in the queue."""
        self.parts = parts

    async def run(self) -> None:
        """The whole run. Raises RunFailed when it cannot go on."""
        async with self.started():
            try:
                while self.step < self.total_steps and not self.config.trainer.val_only:
                    report = await self.train_step()
                    if self.due(self.config.trainer.test_freq):
                        await self._validate(report)
                    self.parts.trackers.log(self.step, report.numbers)
            except (asyncio.CancelledError, RunFailed):
                await self._save_on_exit()
                raise
            await self._save_on_exit()
            await self.parts.flow.end(self.step)

    @contextlib.asynccontextmanager
    async def started(self) -> AsyncIterator[None]:
        """A block in which steps can be trained: weights are published, and the replay buffers follow the queue.

        At its end the last checkpoint is written; an error that leaves it leaves the one before.
        """
        try:
            async with running(self.parts.replay.run, self.parts.validation_replay.run):
                await self._begin()
                yield
                await self.parts.checkpoints.settled()
        finally:
            await self.parts.checkpoints.close()

    async def train_step(self) -> StepReport:
        """The next step: submit, then for each local update sample, evaluate, advantages, learn; then sync and clear."""
        self.step += 1
        report = StepReport(self.step, self.parts.host)
        await self._submit(report)
        trained = [await self._local_update(number, report.part()) for number in range(self.parts.schedule.updates)]
        batch, rewards = joined([batch for batch, _ in trained]), [reward for _, rewards in trained for reward in rewards]
        if self.parts.schedule.updates > 1:
            await self.parts.stages.release_anchor()
        report.join_parts()
        self.parts.checkpoints.whole(self.step)
        self._uncleared = [key for batch, _ in trained for key in (*batch.uids, *batch.keys, *batch.greedy)]
        await self._save(report)
        await self._sync(report)
        await self._account(batch, rewards, report)
        await self._clear(batch, report)
        report.finish(batch, self.ranks)
        return report

    async def _local_update(self, number: int, report: StepReport) -> tuple[KVBatchMeta, list[float]]:
        """Sample the groups of one local update and learn from them; returns them with their rewards."""
        batch = await self._sample(number, report)
        cuts = self._balance(batch, number)
        await self._evaluate(cuts, report)
        rewards = await self._advantages(batch, cuts, report)
        await self._learn(batch, cuts, report)
        return batch, rewards

    def worker_died(self, number: int, cause: str) -> None:
        """Agent worker ``number`` lost its groups, those of a validation too: they are issued again."""
        self.parts.flow.worker_died(number, cause)
        self.parts.validation.worker_died(number, cause)

    def due(self, frequency: int) -> bool:
        """Whether something with this frequency happens at this step: never for <= 0, else also at the last step."""
        return frequency > 0 and (self.step % frequency == 0 or self.step == self.total_steps)

    async def _begin(self) -> None:
        """Go on from the newest checkpoint, or start; publish the weights, and validate those of a start when asked to."""
        found = self.parts.checkpoints.found
        if found is not None:
            self.step = await self.parts.checkpoints.restore(found)
            self.parts.trackers.resume(self.step)
            self.parts.say(f"resumed after step {self.step} from {found.folder}")
        self.digest = await self.parts.stages.publish(self.step)
        begun = {} if found is None else self.parts.checkpoints.begun(found)
        await self.parts.stages.engine_usage()  # what they did before counts nowhere
        await self.parts.validation.forget()
        await self.parts.flow.resume(self.step, begun, newer=self.config.trainer.resume_newer == "keep")
        if found is not None and not self.config.trainer.val_only:
            return
        if self.config.trainer.val_before_train or self.config.trainer.val_only:
            report = StepReport(self.step, self.parts.host)
            await self._validate(report)
            self.parts.trackers.log(self.step, report.numbers)

    async def _submit(self, report: StepReport) -> None:
        """Issue prompts; the weights of now are those to which the local updates of the step compare."""
        with report.time("gen"):
            await self.parts.flow.submit(self.step)
        if self.parts.schedule.updates > 1:
            await self.parts.stages.anchor()

    async def _sample(self, number: int, report: StepReport) -> KVBatchMeta:
        """The groups of local update ``number``; with the last of a step the engines are put into its training window."""
        with report.time("gen"):
            failures = await self.parts.flow.sample(self._ask(number))
            partition = self.parts.replay.partition_id
            rows = await self.parts.queue.kv_list(partition, {"status": "success"})
            batch = collect(partition, list(failures), rows, self.step)
            if number == self.parts.schedule.updates - 1:
                await self._open_window()
        self._count_failures(batch, failures, report)
        return batch

    def _ask(self, number: int) -> Ask:
        batch, updates = self.config.data.train_batch_size, self.parts.schedule.updates
        count = batch // updates
        return Ask(step=self.step, count=count, batch=batch, later=count * (updates - 1 - number))

    async def _open_window(self) -> None:
        """What the engines do while the policy trains."""
        window, rollout = self.parts.schedule.training_window, self.config.actor_rollout_ref.rollout
        if window == "pause":
            await self.parts.stages.pause()
        if window != "swap" and rollout.free_cache_engine:
            await self.parts.stages.sleep()

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

    def _balance(self, batch: KVBatchMeta, number: int) -> Cuts:
        actor, critic = self.config.actor_rollout_ref.actor, self.config.critic
        policy = self._cut(batch, number, actor.ppo_mini_batch_size, actor.data_loader_seed if actor.shuffle else None)
        if self.parts.stages.critic is None:
            return Cuts(policy, [])
        return Cuts(policy, self._cut(batch, number, critic.mini_batch_size, critic.data_loader_seed if critic.shuffled else None))

    def _cut(self, batch: KVBatchMeta, number: int, size: int, shuffle_seed: int | None) -> list[BatchMeta]:
        # Local updates counted over the run: the step itself, where a step is one.
        update = (self.step - 1) * self.parts.schedule.updates + number + 1
        permutation = None if shuffle_seed is None else (self.config.trainer.seed + shuffle_seed, update)
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
        if self.due(self.config.trainer.save_freq):
            # From here on a kill costs the steps since the checkpoint before this step's: it must be on disk.
            with report.time("save_checkpoint"):
                await self.parts.checkpoints.settled()
        self.parts.checkpoints.torn()
        if self.parts.stages.critic is not None:
            with report.time("update_critic"):
                report.add_learned(await self.parts.stages.update_critic(cuts.critic))
        if self.config.trainer.critic_warmup <= self.step:
            with report.time("update_actor"):
                report.add_learned(await self.parts.stages.update(cuts.policy))
        self.parts.flow.train(batch.uids, self.step)

    async def _save(self, report: StepReport) -> None:
        """Take a checkpoint; it is written while the run goes on."""
        if self.due(self.config.trainer.save_freq):
            with report.time("save_checkpoint"):
                begun = await self._begun(paused=self.parts.schedule.training_window == "pause")
                await self.parts.checkpoints.save(begun, self._uncleared, self.parts.replay.partition_id)

    async def _begun(self, *, paused: bool) -> list[PartialGroup]:
        """The answers in generation; engines that are not ``paused`` are for as long as it takes to ask."""
        stages = self.parts.stages
        if self.parts.schedule.training_window == "sleep":
            return []
        if not paused:
            await stages.pause()
        try:
            return await self.parts.flow.feeder.partials()
        finally:
            if not paused:
                await stages.resume()

    async def _save_on_exit(self) -> None:
        """Save the last step that was trained, unless it is saved, or the policy is in the midst of the next."""
        checkpoints, trainer = self.parts.checkpoints, self.config.trainer
        if not trainer.saves_on_exit:
            return
        if checkpoints.behind:
            await checkpoints.save(await self._begun(paused=False), self._uncleared, self.parts.replay.partition_id)
        await checkpoints.settled()

    async def _sync(self, report: StepReport) -> None:
        """Publish version k. Equal weights after an applied step that should have changed them are an error."""
        with report.time("update_weights"):
            digest = await self.parts.stages.publish(self.step)
            if self.parts.schedule.training_window == "pause":
                await self.parts.stages.resume()
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
        report.numbers |= self.parts.flow.take_counts(batch.lengths("response_len"))
        report.add_usage(await self.parts.stages.engine_usage())
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
            await self.parts.queue.kv_clear(self._uncleared, batch.partition_id, retain=self._retain)
            self._uncleared = []
            if self._retain is None and self.config.journal != "off":
                # No checkpoint will come for which the journal would have to keep anything.
                await self.parts.queue.committed(self.step)

    @property
    def _retain(self) -> int | None:
        """Until which checkpoint a journal keeps what is cleared: a run that resumes from an earlier one finds it again."""
        return self.step if self.config.trainer.save_freq > 0 else None

    async def _validate(self, report: StepReport) -> None:
        with report.time("testing"):
            report.numbers |= await self.parts.validation.run(self.step)
