"""``critic.*``: the model that foresees returns, and how it learns."""

from typing import Literal

import msgspec

from asyncrl.config.schema.fsdp import FsdpConfig
from asyncrl.config.schema.optim import Optim
from asyncrl.config.schema.section import Section, known
from asyncrl.config.schema.types import Count, LossAggregation, Name, NonNegative, Positive, Seed


class CriticModel(Section, frozen=True, kw_only=True):
    """The backbone, a causal language model in Hugging Face's form; a head of one output takes the place of its own."""

    path: Name | None = None
    """Folder of the model, or ``pkg://PACKAGE/FOLDER`` inside a Python package; null = ``actor_rollout_ref.model.path``."""
    trust_remote_code: bool = False
    """Run Python code that lies in the model's folder."""
    enable_gradient_checkpointing: bool = True
    """Compute activations again in the backward pass."""
    use_remove_padding: bool = True
    """Pack rows without padding; off = padded. The same numbers either way."""


class CriticOptim(Optim, frozen=True, kw_only=True):
    """The critic's optimizer; its learning rate takes one step of its schedule per local update."""

    lr: NonNegative = 1e-05
    """Peak learning rate; 0 trains nothing (a control)."""


class Critic(Section, frozen=True, kw_only=True):
    """Mini-batches, micro-batches, loss, optimizer, sharding."""

    enable: bool | None = None
    """Whether there is a critic; null = only for an estimator that needs its values (gae)."""
    strategy: Literal["fsdp", "fsdp2"] = "fsdp"
    """Sharding; both names mean FSDP2."""
    model: CriticModel = msgspec.field(default_factory=CriticModel)
    """The model."""
    optim: CriticOptim = msgspec.field(default_factory=CriticOptim)
    """The optimizer."""
    fsdp: FsdpConfig = msgspec.field(default_factory=FsdpConfig)
    """Sharding of the critic."""
    ppo_mini_batch_size: Count | None = None
    """Prompts of one optimizer step, over all ranks; null = ``actor_rollout_ref.actor.ppo_mini_batch_size``."""
    ppo_micro_batch_size_per_gpu: Count | None = None
    """Rows per forward and backward pass of a rank; null = as many as ``critic.ppo_max_token_len_per_gpu`` allows."""
    use_dynamic_bsz: bool | None = None
    """Cut by tokens also where a number of rows is given; null = ``actor_rollout_ref.actor.use_dynamic_bsz``."""
    ppo_max_token_len_per_gpu: Count = 32768
    """Tokens of one micro-batch of a rank, when micro-batches are cut by tokens."""
    forward_micro_batch_size_per_gpu: Count | None = None
    """Rows per forward pass of a rank for ``values``; null = ``critic.ppo_micro_batch_size_per_gpu``."""
    forward_max_token_len_per_gpu: Count | None = None
    """Tokens of one micro-batch of that pass; null = ``critic.ppo_max_token_len_per_gpu``."""
    ppo_epochs: Count | None = None
    """Passes over the rows of a local update; null = ``actor_rollout_ref.actor.ppo_epochs``."""
    shuffle: bool | None = None
    """Shuffle the prompt groups over the mini-batches, anew at each step; null = ``actor_rollout_ref.actor.shuffle``."""
    data_loader_seed: Seed = 42
    """Added to ``trainer.seed`` for that order."""
    cliprange_value: NonNegative = 0.5
    """A value may move this far from that of the rollout before its error stops to count."""
    loss_agg_mode: LossAggregation | None = None
    """How token losses become one number; null = ``actor_rollout_ref.actor.loss_agg_mode``."""
    loss_scale_factor: Positive | None = None
    """Divisor of ``seq-mean-token-sum-norm``; null = ``actor_rollout_ref.actor.loss_scale_factor``."""
    grad_clip: Positive | None = None
    """verl's unread twin of ``optim.clip_grad``; null, or the same value."""

    @property
    def mini_batch_size(self) -> int:
        """Prompts of one optimizer step."""
        return known(self.ppo_mini_batch_size, "critic.ppo_mini_batch_size")

    @property
    def dynamic(self) -> bool:
        """Whether micro-batches are cut by tokens even when rows are given."""
        return known(self.use_dynamic_bsz, "critic.use_dynamic_bsz")

    @property
    def forward_rows(self) -> int | None:
        """Rows per forward pass for ``values``, or None for a cut by tokens."""
        given = self.forward_micro_batch_size_per_gpu
        return self.ppo_micro_batch_size_per_gpu if given is None else given

    @property
    def forward_tokens(self) -> int:
        """Tokens of one micro-batch of that pass."""
        given = self.forward_max_token_len_per_gpu
        return self.ppo_max_token_len_per_gpu if given is None else given

    @property
    def epochs(self) -> int:
        """Passes over the rows of a local update."""
        return known(self.ppo_epochs, "critic.ppo_epochs")

    @property
    def shuffled(self) -> bool:
        """Whether prompt groups are shuffled over the mini-batches."""
        return known(self.shuffle, "critic.shuffle")

    @property
    def aggregation(self) -> LossAggregation:
        """How token losses become one number."""
        return known(self.loss_agg_mode, "critic.loss_agg_mode")

    @property
    def loss_scale(self) -> float:
        """The divisor in force."""
        return known(self.loss_scale_factor, "critic.loss_scale_factor")
