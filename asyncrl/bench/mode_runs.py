"""The runs of ``asyncrl bench modes``: the shipped loop and workers over an engine that sleeps."""

import math
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass

from asyncrl.algorithms.advantages import ESTIMATORS, AdvantageOptions
from asyncrl.algorithms.kl_in_reward import FixedKL
from asyncrl.bench.job import job
from asyncrl.bench.modes import ModesWork
from asyncrl.bench.report import Figure, Report
from asyncrl.bench.rounds import Progress
from asyncrl.bench.sleeping_engine import latency
from asyncrl.bench.sleeping_rollout import SleepingRollout
from asyncrl.bench.sleeping_stages import SleepingStages
from asyncrl.config.load import load_config
from asyncrl.config.schema.algorithm import Algorithm
from asyncrl.data.dataset import PromptStream
from asyncrl.data.prompts import PromptRow
from asyncrl.quickstart.assets import ADD1
from asyncrl.runtime.group import ActorGroup
from asyncrl.runtime.ref import ActorRef
from asyncrl.runtime.system import ActorSystem
from asyncrl.runtime.tasks import running
from asyncrl.trainer.checkpoint import Checkpoints
from asyncrl.trainer.feeder import Feeder, GroupSettings, Issue
from asyncrl.trainer.flow import PromptFlow
from asyncrl.trainer.ledger import Ledger
from asyncrl.trainer.replay_buffer import ReplayBuffer
from asyncrl.trainer.report import Number, Sample, StepReport
from asyncrl.trainer.sampler import AsyncSampler, Sampler, SyncSampler
from asyncrl.trainer.schedule import Schedule
from asyncrl.trainer.trainer import Parts, Trainer
from asyncrl.trainer.validation import Validation
from asyncrl.training.checkpoint import CheckpointFolder
from asyncrl.trajectory import SamplingParams
from asyncrl.transfer_queue.client import TransferQueue
from asyncrl.transfer_queue.shard import QueueShard
from asyncrl.workers.advantages import AdvantageSettings
from asyncrl.workers.agent import AgentWorker
from asyncrl.workers.policy import PolicyWorker
from asyncrl.workers.reward import RewardWorker
from asyncrl.workers.rollout import RolloutWorker

SCHEDULES = {
    "sync": Schedule(),
    "colocate_async": Schedule(lookahead=1.0, training_window="pause", whole_groups=True),
    "separate_async": Schedule(lookahead=2.0, training_window="swap", whole_groups=True),
}
STALENESS = "training/off_policy/trajectory_staleness_worst"
LATER = 20
"""Steps that the run would still have: a run that ends issues less."""


@dataclass(frozen=True, slots=True)
class Played:
    """One run: seconds of a step, those of the best schedule, and how stale its rows were."""

    seconds: float
    best: float
    staleness_mean: float
    staleness_max: float


async def play_modes(progress: Progress, work: ModesWork) -> Report:
    """Every mode with every seed."""
    found: dict[str, list[Played]] = {mode: [] for mode in SCHEDULES}
    for seed in range(work.seeds):
        for mode, schedule in SCHEDULES.items():
            progress(f"modes: seed {seed + 1} of {work.seeds}, {mode}")
            found[mode].append(await _play(schedule, seed, work))
    figures = {
        mode: Figure.of(_mean([each.seconds for each in played]), "s", _mean([each.best for each in played]))
        for mode, played in found.items()
    }
    for mode, schedule in SCHEDULES.items():
        if schedule.lookahead:
            played = found[mode]
            figures[f"{mode}_staleness"] = Figure.of(_mean([each.staleness_mean for each in played]), "versions", schedule.lookahead)
            most = max(each.staleness_max for each in played)
            figures[f"{mode}_staleness_max"] = Figure.of(most, "versions", schedule.lookahead)
    return Report("modes", figures)


async def _play(schedule: Schedule, seed: int, work: ModesWork) -> Played:
    async with job() as system:
        rollout = await system.spawn(SleepingRollout, seed, work.slots, work.mean, work.sigma, name="engine", process="new")
        shards = [await system.spawn(QueueShard, slot, name=f"shard-{slot}", process="new") for slot in range(2)]
        reward = "pkg://asyncrl.quickstart.reward"
        judge = await system.spawn(RewardWorker, reward, "compute_score", {}, 4, 10.0, name="reward", process="new")
        agent = await system.spawn(AgentWorker, str(ADD1 / "model"), 8, None, {}, 60.0, False, name="agent", process="new")
        await agent.call(AgentWorker.connect, [rollout.address], [shard.address for shard in shards], [judge.address])
        return await _steps(system, schedule, seed, work, TransferQueue(shards), rollout, agent)


async def _steps(
    system: ActorSystem,
    schedule: Schedule,
    seed: int,
    work: ModesWork,
    queue: TransferQueue,
    rollout: ActorRef[SleepingRollout],
    agent: ActorRef[AgentWorker],
) -> Played:
    feeder = CountingFeeder(queue, [agent], _groups("train", seed, work))
    trainer = _trainer(system, schedule, work, queue, feeder, rollout)
    replay = trainer.parts.replay
    async with running(replay.run):
        trainer.digest = await trainer.parts.stages.publish(0)
        for _ in range(work.warm):
            await trainer.train_step()
        feeder.issued.clear()
        began = time.perf_counter()
        reports = [await trainer.train_step() for _ in range(work.steps)]
        seconds = (time.perf_counter() - began) / work.steps
        await trainer.parts.flow.end(trainer.step)
    return Played(seconds, best(schedule, feeder.issued, seed, work), *_staleness(reports))


def best(schedule: Schedule, uids: Sequence[str], seed: int, work: ModesWork) -> float:
    """Seconds of a step of the best schedule, which has no overhead and never leaves a slot empty."""
    drawn = math.fsum(latency(seed, uid, str(session), work.mean, work.sigma) for uid in uids for session in range(work.sessions))
    generation = drawn / work.slots / work.steps
    return max(generation, work.training) if schedule.training_window == "swap" else generation + work.training


class CountingFeeder(Feeder):
    """Notes what was issued."""

    def __init__(self, queue: TransferQueue, agents: Sequence[ActorRef[AgentWorker]], settings: GroupSettings) -> None:
        super().__init__(queue, agents, settings)
        self.issued: list[str] = []

    async def issue(self, issues: Sequence[Issue]) -> list[Issue]:
        """As shipped."""
        self.issued += [issue.uid for issue in issues]
        return await super().issue(issues)


def _trainer(
    system: ActorSystem,
    schedule: Schedule,
    work: ModesWork,
    queue: TransferQueue,
    feeder: CountingFeeder,
    rollout: ActorRef[SleepingRollout],
) -> Trainer:
    """The shipped loop over sleeping stages."""
    batch, total = work.prompts, work.warm + work.steps + LATER
    options = [f"data.train_batch_size={batch}", f"actor_rollout_ref.rollout.n={work.sessions}", "trainer.save_freq=-1"]
    mini = [f"actor_rollout_ref.actor.ppo_mini_batch_size={batch}"]
    config = load_config(["config=quickstart", *options, *mini]).config
    rows = [PromptRow(prompt="1+1=", data_source="add1", ground_truth="2", index=index) for index in range(batch)]
    prompts, ledger = PromptStream(rows, train_batch_size=batch, seed=1, shuffle=False), Ledger()
    stages = _stages(system, config.algorithm, work, queue, rollout)
    sampler: Sampler = AsyncSampler(threshold=None) if schedule.whole_groups else SyncSampler()
    replay = ReplayBuffer(queue, "train", _ignore)
    flow = PromptFlow(
        ledger=ledger,
        prompts=prompts,
        feeder=feeder,
        replay=replay,
        sampler=sampler,
        queue=queue,
        schedule=schedule,
        host=system.host,
        say=_ignore,
        batch=batch,
        total_steps=total,
        lease_seconds=math.inf,
    )
    validation_replay = ReplayBuffer(queue, "val", _ignore)
    parts = Parts(
        host=system.host,
        queue=queue,
        stages=stages,
        prompts=prompts,
        flow=flow,
        replay=replay,
        validation=_no_validation(system, queue, feeder, validation_replay),
        validation_replay=validation_replay,
        checkpoints=Checkpoints(CheckpointFolder("", None), None, stages, prompts, ledger, queue, system.host),
        schedule=schedule,
        trackers=_Quiet(),
        say=_ignore,
    )
    return Trainer(config, parts, 1, total)


def _no_validation(system: ActorSystem, queue: TransferQueue, feeder: Feeder, replay: ReplayBuffer) -> Validation:
    return Validation(queue, feeder, replay, [], sessions=1, seed=1, batch_size=None, host=system.host, say=_ignore, lease_seconds=math.inf)


def _stages(
    system: ActorSystem, algorithm: Algorithm, work: ModesWork, queue: TransferQueue, rollout: ActorRef[SleepingRollout]
) -> SleepingStages:
    return SleepingStages(
        # Every stage that would ask the policy sleeps instead.
        policy=ActorGroup([system.ref(rollout.address, PolicyWorker)]),
        reference=None,
        critic=None,
        rollout=ActorGroup([system.ref(rollout.address, RolloutWorker)]),
        queue=queue,
        algorithm=algorithm,
        estimation=AdvantageSettings(estimator=ESTIMATORS["grpo"], options=AdvantageOptions(), kl_in_reward=False),
        kl=FixedKL(0.0),
        fleet=None,
        training=work.training,
        engine=rollout,
    )


def _groups(partition: str, seed: int, work: ModesWork) -> GroupSettings:
    return GroupSettings(partition, work.sessions, SamplingParams(max_tokens=100_000), seed, "single_turn_agent")


def _staleness(reports: Sequence[StepReport]) -> tuple[float, float]:
    """Mean and largest staleness over the steps."""
    found = [(report.numbers[f"{STALENESS}/mean"], report.numbers[f"{STALENESS}/max"]) for report in reports]
    return _mean([mean for mean, _ in found if isinstance(mean, float)]), max(most for _, most in found if isinstance(most, float))


def _mean(values: Sequence[float]) -> float:
    return statistics.fmean(values)


def _ignore(text: str) -> None:
    return None


class _Quiet:
    """Trackers that keep nothing."""

    def log(self, step: int, numbers: dict[str, Number]) -> None:
        """Nothing."""

    def generations(self, step: int, samples: Sequence[Sample]) -> None:
        """Nothing."""

    def resume(self, step: int) -> None:
        """Nothing."""
