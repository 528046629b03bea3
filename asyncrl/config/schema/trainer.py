"""``trainer.*``: the length of the run, where it runs, what it reports and saves."""

from typing import Literal

import msgspec

from asyncrl.config.schema.section import Section
from asyncrl.config.schema.types import Count, Name, NonNegativeInt, Seed


class TrainerV1(Section, frozen=True, kw_only=True):
    """The mode of the loop."""

    trainer_mode: Literal["sync"] = "sync"
    """``sync``: sample, then learn, then sync weights."""


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
    default_local_dir: Name | None = None
    """The run folder; null = ``runs/<experiment>/<UTC>-s<seed>``."""
    v1: TrainerV1 = msgspec.field(default_factory=TrainerV1)
    """The mode."""
