"""``trainer.*``: the length of the run, where it runs, what it reports and saves."""

from typing import Literal

import msgspec

from asyncrl.config.schema.section import Section
from asyncrl.config.schema.types import Count, Name, NonNegativeInt, Seed


class Sampler(Section, frozen=True, kw_only=True):
    """Which finished groups a step takes."""

    max_off_policy_threshold: Count | None = 8
    """A group may be at most this minus one versions old; sync never has an older one. null = no bound."""
    max_off_policy_strategy: Literal["drop"] = "drop"
    """What becomes of a group beyond it."""
    sync_refill_failed_groups: bool = False
    """Replace a group of which no session gave a trajectory by a new prompt."""


class TrainerV1(Section, frozen=True, kw_only=True):
    """The mode of the loop."""

    trainer_mode: Literal["sync"] = "sync"
    """``sync``: sample, then learn, then sync weights."""
    sampler: Sampler = msgspec.field(default_factory=Sampler)
    """Which groups a step takes."""


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
    critic_warmup: NonNegativeInt = 0
    """The policy learns from this step on."""
    save_freq: int = -1
    """Save a checkpoint every so many steps; not above 0 = never."""
    test_freq: int = -1
    """Validate every so many steps and after the last; not above 0 = never."""
    val_before_train: bool = True
    """Validate before the first step."""
    val_only: bool = False
    """Validate and stop."""
    resume_mode: Literal["auto", "disable"] = "auto"
    """``auto`` goes on from the newest checkpoint of the run folder; ``disable`` refuses a used folder."""
    default_local_dir: Name | None = None
    """The run folder; null = ``runs/<experiment>/<UTC>-s<seed>``."""
    log_val_generations: NonNegativeInt = 0
    """Validation samples shown after each validation."""
    rollout_data_dir: Name | None = None
    """Folder for the rows of each step as JSONL; null = none."""
    validation_data_dir: Name | None = None
    """Folder for validation's samples as JSONL; null = none."""
    v1: TrainerV1 = msgspec.field(default_factory=TrainerV1)
    """The mode."""
