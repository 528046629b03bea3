"""``trainer.*``: the length of the run, where it runs, what it reports and saves."""

from typing import Literal

import msgspec

from asyncrl.config.schema.section import Section, refuse
from asyncrl.config.schema.types import Count, Name, NonNegative, NonNegativeInt, Positive, Seed, Table


class Sync(Section, frozen=True, kw_only=True):
    """``sync`` has no options."""


class ColocateAsync(Section, frozen=True, kw_only=True):
    """Generation runs ahead on the devices of the trainer."""

    num_warmup_batches: NonNegative = 1.0
    """Batches of prompts in flight beyond the one being trained; fractions are allowed."""


class SeparateAsync(Section, frozen=True, kw_only=True):
    """Generation runs ahead on devices of its own."""

    num_warmup_batches: NonNegative = 1.0
    """Batches of prompts in flight beyond the one being trained; fractions are allowed."""
    parameter_sync_step: Count = 4
    """Local updates that share one weight sync; they divide ``data.train_batch_size``."""


class Custom(Section, frozen=True, kw_only=True):
    """Something of the user's, by file and name."""

    path: Name | None = None
    """Python file that holds it, or ``pkg://PACKAGE/FILE``; null = asyncrl's own."""
    name: Name | None = None
    """Its name in that file."""

    def __post_init__(self) -> None:
        if (self.path is None) != (self.name is None):
            raise refuse("name", self.name, "allowed: path and name together, or neither")


class Sampler(Section, frozen=True, kw_only=True):
    """Which finished groups are trained."""

    max_off_policy_threshold: Count | None = 8
    """Async modes: at training a row's oldest token is at most this minus 1 versions old; null = no bound."""
    max_off_policy_strategy: Literal["drop", "wait"] = "drop"
    """What keeps to it: drop what is too old, or let a step wait for what would become too old."""
    sync_refill_failed_groups: bool = False
    """``sync``: a group without any row is replaced; off = the step trains on fewer groups."""
    custom_sampler: Custom = msgspec.field(default_factory=Custom)
    """A class of your own with the method ``choose`` of ``asyncrl.trainer.sampler.Sampler``."""
    sampler_kwargs: Table = msgspec.field(default_factory=dict)
    """What that class is called with."""
    lease: Positive = 3600.0
    """Seconds after which a group that has not ended is issued again. asyncrl's own."""


class TrainerV1(Section, frozen=True, kw_only=True):
    """The mode of the loop."""

    trainer_mode: Literal["sync", "colocate_async", "separate_async"] = "sync"
    """``sync``: sample, learn, sync weights. ``colocate_async``: generation runs ahead and is interrupted while the policy learns.
    ``separate_async``: generation runs ahead on devices of its own and takes new weights in flight."""
    sync: Sync = msgspec.field(default_factory=Sync)
    """Options of that mode."""
    colocate_async: ColocateAsync = msgspec.field(default_factory=ColocateAsync)
    """Options of that mode."""
    separate_async: SeparateAsync = msgspec.field(default_factory=SeparateAsync)
    """Options of that mode."""
    sampler: Sampler = msgspec.field(default_factory=Sampler)
    """Which groups are trained."""
    custom_schedule: Custom = msgspec.field(default_factory=Custom)
    """A ``asyncrl.trainer.schedule.Schedule`` of your own, in place of that of ``trainer_mode``. asyncrl's own."""

    @property
    def updates(self) -> int:
        """Local updates of a step."""
        return self.separate_async.parameter_sync_step if self.trainer_mode == "separate_async" else 1

    @property
    def lookahead(self) -> float:
        """Batches of prompts in flight beyond the one being trained."""
        ahead = {"colocate_async": self.colocate_async.num_warmup_batches, "separate_async": self.separate_async.num_warmup_batches}
        return ahead.get(self.trainer_mode, 0.0)


class Trainer(Section, frozen=True, kw_only=True):
    """The run."""

    project_name: Name = "verl_examples"
    """Name of the project, for trackers."""
    experiment_name: Name = "gsm8k"
    """Name of the run; part of the run folder's path."""
    logger: tuple[Literal["console", "file", "tensorboard"], ...] = ("console", "file", "tensorboard")
    """Where metrics go: one name or a list."""
    total_epochs: Count = 30
    """Passes over the prompts, unless ``total_training_steps`` is given."""
    total_training_steps: Count | None = None
    """Steps of the run; null = by epochs."""
    nnodes: Count | None = None
    """Nodes; null = torchrun's."""
    n_gpus_per_node: Count | None = None
    """Ranks on each node; null = torchrun's."""
    device: Literal["cuda", "cpu"] | None = None
    """Where models run; null = cuda if there is one, else cpu."""
    seed: Seed = 1
    """Feeds data order, sampling, dropout and mini-batch order."""
    save_freq: int = -1
    """Save a checkpoint every so many steps; not above 0 = never."""
    save_on_exit: bool | Literal["auto"] = "auto"
    """Save the last trained step when the run ends or is stopped by a signal; ``auto`` = where ``save_freq`` is above 0. asyncrl's own."""
    max_actor_ckpt_to_keep: Count | None = None
    """Complete checkpoints that stay in the run folder, counted on disk; null = all."""
    max_critic_ckpt_to_keep: Count | None = None
    """null, or the same value: one checkpoint holds policy and critic."""
    critic_warmup: NonNegativeInt = 0
    """The first step that updates the policy; before it the critic alone learns. 0 and 1 = from the first step on."""
    test_freq: int = -1
    """Validate every so many steps and after the last; not above 0 = never."""
    val_before_train: bool = True
    """Validate before the first step."""
    val_only: bool = False
    """Validate and stop."""
    resume_mode: Literal["auto", "disable"] = "auto"
    """``auto`` goes on from the newest checkpoint of the run folder; ``disable`` refuses a used folder."""
    resume_newer: Literal["keep", "discard"] = "keep"
    """What a resumed run does with finished groups whose tokens are of versions after its checkpoint. asyncrl's own."""
    default_local_dir: Name | None = None
    """The run folder; null = ``runs/<experiment>/<UTC>-s<seed>``."""
    v1: TrainerV1 = msgspec.field(default_factory=TrainerV1)
    """The mode."""

    @property
    def saves_on_exit(self) -> bool:
        """Whether the end of the run, or a signal, is a reason to save."""
        return self.save_freq > 0 if self.save_on_exit == "auto" else self.save_on_exit
