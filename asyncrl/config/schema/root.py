"""The root of the configuration tree."""

from typing import Literal

import msgspec

from asyncrl.config.estimators import VALUING
from asyncrl.config.schema.actor import Actor
from asyncrl.config.schema.algorithm import Algorithm
from asyncrl.config.schema.critic import Critic
from asyncrl.config.schema.data import Data
from asyncrl.config.schema.model import Model
from asyncrl.config.schema.reference import Reference
from asyncrl.config.schema.reward import Reward
from asyncrl.config.schema.rollout import Rollout
from asyncrl.config.schema.runtime import Runtime
from asyncrl.config.schema.section import Section
from asyncrl.config.schema.trainer import Trainer
from asyncrl.config.schema.transfer_queue import TransferQueueConfig


class ActorRolloutRef(Section, frozen=True, kw_only=True):
    """The policy in its three roles."""

    model: Model = msgspec.field(default_factory=Model)
    """The model they share."""
    actor: Actor = msgspec.field(default_factory=Actor)
    """The policy as it learns."""
    ref: Reference = msgspec.field(default_factory=Reference)
    """The frozen reference."""
    rollout: Rollout = msgspec.field(default_factory=Rollout)
    """The policy as it samples."""


class Config(Section, frozen=True, kw_only=True):
    """All of a run. ``asyncrl.config.load.load_config`` makes it from YAML and a command line."""

    data: Data = msgspec.field(default_factory=Data)
    """Prompts."""
    actor_rollout_ref: ActorRolloutRef = msgspec.field(default_factory=ActorRolloutRef)
    """The policy."""
    critic: Critic = msgspec.field(default_factory=Critic)
    """The critic."""
    algorithm: Algorithm = msgspec.field(default_factory=Algorithm)
    """Advantages."""
    reward: Reward = msgspec.field(default_factory=Reward)
    """Rewards."""
    trainer: Trainer = msgspec.field(default_factory=Trainer)
    """The run."""
    transfer_queue: TransferQueueConfig = msgspec.field(default_factory=TransferQueueConfig)
    """The queue."""
    runtime: Runtime = msgspec.field(default_factory=Runtime)
    """The actor runtime."""
    debug: Literal["inline"] | None = None
    """``inline``: one rank and every role in one process and one thread, so that a breakpoint works in any stage. asyncrl's own."""

    @property
    def need_reference(self) -> bool:
        """Whether a KL term needs the reference model."""
        return self.algorithm.use_kl_in_reward or self.actor_rollout_ref.actor.use_kl_loss

    @property
    def journal(self) -> Literal["off", "interval", "always"]:
        """What the queue's shards keep on disk."""
        given = self.transfer_queue.journal
        return given if given is not None else "off" if self.trainer.v1.trainer_mode == "sync" else "interval"

    @property
    def need_critic(self) -> bool:
        """Whether there is a critic."""
        enable = self.critic.enable
        return self.algorithm.estimator in VALUING if enable is None else enable
