"""Rank 0's controller: the loop with its parts, put together from the configuration."""

import contextlib
from collections.abc import Callable, Iterator, Sequence

from asyncrl.agents.chat import ChatTokenizer
from asyncrl.algorithms.kl_in_reward import kl_controller
from asyncrl.config.schema import Config
from asyncrl.launch.checkpoint import checkpoint_folder
from asyncrl.launch.inputs import total_steps
from asyncrl.launch.models import advantage_settings
from asyncrl.launch.revival import Revival
from asyncrl.launch.run_folder import RunFolder
from asyncrl.launch.schedule import open_sampler, open_schedule
from asyncrl.launch.session import Session, say
from asyncrl.observe.console import ConsoleTracker
from asyncrl.observe.curve import draw_curve
from asyncrl.observe.trackers import FileTracker, Generations, TensorBoardTracker, Tracker, TrackerSet
from asyncrl.runtime.directory import Directory
from asyncrl.runtime.tasks import running
from asyncrl.trainer.checkpoint import Checkpoints
from asyncrl.trainer.feeder import Feeder, GroupSettings
from asyncrl.trainer.flow import PromptFlow
from asyncrl.trainer.ledger import Ledger
from asyncrl.trainer.replay_buffer import ReplayBuffer
from asyncrl.trainer.report import Number, Sample
from asyncrl.trainer.stages import Stages
from asyncrl.trainer.trainer import Parts, Trackers, Trainer
from asyncrl.trainer.validation import Validation
from asyncrl.trajectory import SamplingParams

Say = Callable[[str], None]

SCORES = ("reward", "score", "seq_reward", "seq_final_reward")
"""Names of the filter's metric that mean the score itself: the one of verl's V1 trainer, and those of its recipes."""


class RunTrackers:
    """The trackers of a run, and the sampled generations beside them."""

    def __init__(self, trackers: TrackerSet, generations: Generations, tokenizer: ChatTokenizer) -> None:
        self._trackers, self._generations, self._tokenizer = trackers, generations, tokenizer

    def log(self, step: int, numbers: dict[str, Number]) -> None:
        """Give the numbers of a step to every tracker."""
        self._trackers.log(step, numbers)

    def generations(self, step: int, samples: Sequence[Sample]) -> None:
        """Write a few answers of the step, decoded, with their rewards."""
        decode = self._tokenizer.decode
        self._generations.log(
            step,
            [
                {"key": each.key, "prompt": decode(each.prompt_ids), "response": decode(each.response_ids), "score": each.score}
                for each in samples
            ],
        )

    def resume(self, step: int) -> None:
        """The run goes on after ``step``: forget what was logged beyond it."""
        self._trackers.resume(step)
        self._generations.resume(step)

    def finish(self) -> None:
        """Close everything."""
        self._trackers.finish()
        self._generations.finish()


def open_trackers(config: Config, folder: RunFolder, console: ConsoleTracker, tokenizer: ChatTokenizer, say: Say) -> RunTrackers:
    """The trackers that ``trainer.logger`` names."""
    makers: dict[str, Callable[[], Tracker]] = {
        "console": lambda: console,
        "file": lambda: FileTracker(folder.path),
        "tensorboard": lambda: TensorBoardTracker(folder.path),
    }
    return RunTrackers(TrackerSet([makers[name]() for name in config.trainer.logger], say), Generations(folder.path), tokenizer)


def build_trainer(session: Session, trackers: Trackers, say: Say) -> Trainer:
    """The loop and everything it drives."""
    config, cluster, prompts = session.loaded.config, session.cluster, session.prompts
    weight = config.algorithm.kl_ctrl
    kl = kl_controller(weight.type, weight.kl_coef, weight.target_kl, weight.horizon)
    stages = Stages(
        policy=cluster.policy,
        reference=cluster.reference,
        critic=cluster.critic,
        rollout=cluster.rollout,
        queue=cluster.queue,
        algorithm=config.algorithm,
        estimation=advantage_settings(config),
        kl=kl,
        fleet=cluster.fleet,
    )
    replay, validation_replay = ReplayBuffer(cluster.queue, "train", say), ReplayBuffer(cluster.queue, "val", say)
    ledger = Ledger()
    steps, schedule = total_steps(config, prompts.steps_per_epoch), open_schedule(config)
    flow = PromptFlow(
        ledger=ledger,
        prompts=prompts,
        feeder=Feeder(cluster.queue, cluster.agents, training_groups(config)),
        replay=replay,
        sampler=open_sampler(config, schedule),
        queue=cluster.queue,
        schedule=schedule,
        host=session.host,
        say=say,
        batch=config.data.train_batch_size,
        total_steps=steps,
        lease_seconds=config.trainer.v1.sampler.lease,
        saves=config.trainer.save_freq > 0,
        most_batches=config.algorithm.filter_groups.gen_batches,
    )
    parts = Parts(
        host=session.host,
        queue=cluster.queue,
        stages=stages,
        prompts=prompts,
        flow=flow,
        replay=replay,
        validation=_validation(session, validation_replay, say),
        validation_replay=validation_replay,
        checkpoints=Checkpoints(
            checkpoint_folder(config, session.folder), session.checkpoint, stages, prompts, ledger, cluster.queue, session.host
        ),
        schedule=schedule,
        trackers=trackers,
        say=say,
    )
    return Trainer(config, parts, len(cluster.policy), steps)


def _validation(session: Session, replay: ReplayBuffer, say: Say) -> Validation:
    config, cluster = session.loaded.config, session.cluster
    return Validation(
        cluster.queue,
        Feeder(cluster.queue, cluster.agents, _validation_groups(config)),
        replay,
        session.validation_rows,
        sessions=config.actor_rollout_ref.rollout.val_kwargs.n,
        seed=config.trainer.seed,
        batch_size=config.data.val_batch_size,
        host=session.host,
        say=say,
        lease_seconds=config.trainer.v1.sampler.lease,
    )


@contextlib.contextmanager
def tracked_trainer(session: Session) -> Iterator[Trainer]:
    """The loop with the trackers of the configuration, which are closed at the end."""
    console = ConsoleTracker(session.total_steps)
    console.header(f"asyncrl: {session.loaded.name}", session.header)
    trackers = open_trackers(session.loaded.config, session.folder, console, session.tokenizer, say)
    try:
        yield build_trainer(session, trackers, say)
    finally:
        trackers.finish()


async def train(session: Session) -> None:
    """Run the loop to its end."""
    with tracked_trainer(session) as trainer:
        directory = session.system.directory
        # Without one no process begins a new life.
        following = (
            [] if directory is None else [Revival(session.system.ref(directory, Directory), session.cluster, trainer.worker_died).run]
        )
        async with running(*following):
            await trainer.run()


def show_curve(config: Config, folder: RunFolder) -> None:
    """Draw the learning curve of a run that has metrics."""
    if (folder.path / "metrics.jsonl").exists():
        trainer = config.trainer
        title = f"{trainer.project_name}: {trainer.experiment_name}, seed {trainer.seed}"
        say(f"learning curve: {draw_curve(folder.path, title)}")


def training_groups(config: Config) -> GroupSettings:
    """What every training group has in common, with what the advantage estimator needs of it."""
    rollout, needs = config.actor_rollout_ref.rollout, advantage_settings(config).estimator.needs
    rule, bounded = config.algorithm.filter_groups, config.trainer.v1.sampler.max_off_policy_threshold is not None
    sampling = SamplingParams(
        temperature=rollout.temperature,
        top_p=rollout.top_p,
        top_k=rollout.top_k,
        max_tokens=rollout.response_limit,
        ignore_eos=rollout.ignore_eos,
    )
    return GroupSettings(
        "train",
        rollout.n,
        sampling,
        config.trainer.seed,
        rollout.agent.default_agent_loop,
        greedy_baseline=needs.greedy_baseline,
        reward_components=tuple(name for name, _ in config.algorithm.components) if needs.reward_components else (),
        filter_metric="" if rule.metric in SCORES else rule.metric,
        report_start=bounded and open_schedule(config).whole_groups,
    )


def _validation_groups(config: Config) -> GroupSettings:
    rollout = config.actor_rollout_ref.rollout
    given = rollout.val_kwargs
    sampling = SamplingParams(
        temperature=given.temperature,
        top_p=given.top_p,
        top_k=given.top_k,
        max_tokens=rollout.response_limit,
        ignore_eos=rollout.ignore_eos,
    )
    return GroupSettings("val", given.n, sampling, config.trainer.seed, rollout.agent.default_agent_loop, urgent=True)
