"""``actor_rollout_ref.actor.*``: the policy as it learns."""

from typing import Annotated, Literal

import msgspec

from asyncrl.config.schema.fsdp import FsdpConfig
from asyncrl.config.schema.optim import Optim
from asyncrl.config.schema.section import Section, known
from asyncrl.config.schema.types import Count, KlEstimator, LossAggregation, NonNegative, Positive, Seed


class PolicyLoss(Section, frozen=True, kw_only=True):
    """Which policy loss."""

    loss_mode: Literal["vanilla"] = "vanilla"
    """``vanilla``: PPO's clipped ratio with dual clip."""


class Actor(Section, frozen=True, kw_only=True):
    """Mini-batches, micro-batches, clipping, entropy and KL terms, optimizer, sharding."""

    strategy: Literal["fsdp", "fsdp2"] = "fsdp"
    """Sharding; both names mean FSDP2."""
    ppo_mini_batch_size: Count = 256
    """Prompts of one optimizer step, over all ranks; it divides ``data.train_batch_size``."""
    ppo_micro_batch_size_per_gpu: Count | None = None
    """Rows per forward and backward pass of a rank; null = as many as ``ppo_max_token_len_per_gpu`` allows."""
    use_dynamic_bsz: bool = False
    """Cut micro-batches by ``ppo_max_token_len_per_gpu`` also where a number of rows is given."""
    ppo_max_token_len_per_gpu: Count = 16384
    """Tokens of one micro-batch of a rank, when micro-batches are cut by tokens."""
    clip_ratio: NonNegative = 0.2
    """Clip of the probability ratio, for the two options below that are null."""
    clip_ratio_low: NonNegative | None = None
    """The ratio is clipped below at 1 - this; null = ``clip_ratio``. No upper limit: 10 switches the lower clip off."""
    clip_ratio_high: NonNegative | None = None
    """The ratio is clipped above at 1 + this; null = ``clip_ratio``."""
    clip_ratio_c: Annotated[float, msgspec.Meta(gt=1.0)] = 3.0
    """Dual clip: for a negative advantage the loss is at most this times the advantage's size."""
    policy_loss: PolicyLoss = msgspec.field(default_factory=PolicyLoss)
    """The policy loss."""
    loss_agg_mode: LossAggregation = "token-mean"
    """How token losses become one number, over the whole mini-batch and all ranks."""
    loss_scale_factor: Positive | None = None
    """Divisor of ``seq-mean-token-sum-norm``; null = ``data.max_response_length``."""
    entropy_coeff: float = 0.0
    """Weight of the entropy bonus."""
    calculate_entropy: bool = False
    """Report the entropy of the update also where its weight is 0."""
    use_kl_loss: bool = False
    """Add the KL to the reference model to the loss."""
    kl_loss_coef: NonNegative = 0.001
    """Weight of that term."""
    kl_loss_type: KlEstimator = "low_var_kl"
    """Estimator of that term."""
    ppo_epochs: Count = 1
    """Passes over the rows of a local update."""
    shuffle: bool = False
    """Shuffle the prompt groups over the mini-batches, anew at each step; the passes of a step share one order."""
    data_loader_seed: Seed = 42
    """Added to ``trainer.seed`` for that order."""
    grad_clip: Positive | None = None
    """verl's unread twin of ``optim.clip_grad``; null, or the same value."""
    optim: Optim = msgspec.field(default_factory=Optim)
    """The optimizer."""
    fsdp_config: FsdpConfig = msgspec.field(default_factory=FsdpConfig)
    """Sharding of the policy."""

    @property
    def clip_low(self) -> float:
        """The lower clip in force."""
        return self.clip_ratio if self.clip_ratio_low is None else self.clip_ratio_low

    @property
    def clip_high(self) -> float:
        """The upper clip in force."""
        return self.clip_ratio if self.clip_ratio_high is None else self.clip_ratio_high

    @property
    def loss_scale(self) -> float:
        """The divisor in force."""
        return known(self.loss_scale_factor, "actor_rollout_ref.actor.loss_scale_factor")
