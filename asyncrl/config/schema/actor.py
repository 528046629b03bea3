"""``actor_rollout_ref.actor.*``: the policy as it learns."""

from typing import Annotated, Literal

import msgspec

from asyncrl.config.schema.correction import BypassCorrection
from asyncrl.config.schema.fsdp import FsdpConfig
from asyncrl.config.schema.optim import Optim
from asyncrl.config.schema.section import Section, known, refuse
from asyncrl.config.schema.types import (
    Count,
    KlEstimator,
    LossAggregation,
    Name,
    NonNegative,
    Positive,
    PositiveFraction,
    Seed,
    Table,
)

LossMode = Literal[
    "vanilla",
    "dppo_tv",
    "dppo_kl",
    "gspo",
    "sapo",
    "gpg",
    "clip_cov",
    "kl_cov",
    "geo_mean",
    "dro",
    "cispo",
    "bypass_mode",
    "grpo",
    "luspo",
    "vespo",
]
"""The policy losses; the last three are TRL's."""


class CustomPolicyLoss(Section, frozen=True, kw_only=True):
    """A policy loss of the user, in place of ``loss_mode``."""

    path: Name | None = None
    """Python file that holds it, or ``pkg://PACKAGE/FILE``; null = ``actor_rollout_ref.actor.policy_loss.loss_mode``."""
    name: Name = "policy_loss"
    """Its name in that file: a function ``(PolicyRows, options)`` that gives a ``PolicyLoss``, or a ``PolicyLossKind``."""
    options: Table = msgspec.field(default_factory=dict)
    """Its options: the dict that the function gets, or fields of the options class of the ``PolicyLossKind``."""


class PolicyLoss(Section, frozen=True, kw_only=True):
    """Which policy loss, and options that belong to one or two of them."""

    loss_mode: LossMode = "vanilla"
    """The policy loss; ``docs/algorithms.md`` has the formula of each."""
    clip_cov_ratio: PositiveFraction = 0.0002
    """Tokens that clip_cov leaves out, as a part of the trainable ones."""
    clip_cov_lb: float = 1.0
    """The covariance of such a token is above this,"""
    clip_cov_ub: float = 5.0
    """and below this."""
    kl_cov_ratio: PositiveFraction = 0.0002
    """Tokens that get the KL term of kl_cov, as a part of the trainable ones."""
    ppo_kl_coef: NonNegative = 0.1
    """Weight of that term."""
    dro_beta: Positive | None = None
    """Weight of dro's quadratic term, which has no default."""
    epsilon: NonNegative = 0.2
    """grpo, luspo: the ratio is clipped below at 1 - this. TRL's name."""
    epsilon_high: NonNegative | None = None
    """grpo, luspo: the ratio is clipped above at 1 + this; null = ``epsilon``. TRL's name."""
    delta: Positive | None = None
    """grpo, luspo: upper bound of the ratio that is not clipped; null = none. TRL's name."""
    importance_sampling_level: Literal["token", "sequence"] = "token"
    """grpo: one ratio a token or one a row. TRL's name."""
    vespo_k_pos: float = 2.0
    """vespo: exponent of the weight where the advantage is >= 0. TRL's name."""
    vespo_lambda_pos: Positive = 3.0
    """vespo: decay of the weight where the advantage is >= 0. TRL's name."""
    vespo_k_neg: float = 3.0
    """vespo: exponent where the advantage is < 0. TRL's name."""
    vespo_lambda_neg: Positive = 2.0
    """vespo: decay where the advantage is < 0. TRL's name."""
    rollout_correction: BypassCorrection = msgspec.field(default_factory=BypassCorrection)
    """What bypass_mode corrects."""
    custom: CustomPolicyLoss = msgspec.field(default_factory=CustomPolicyLoss)
    """A policy loss of your own. asyncrl's own."""

    def __post_init__(self) -> None:
        if not self.clip_cov_lb < self.clip_cov_ub:
            raise refuse("clip_cov_lb", self.clip_cov_lb, f"allowed: a number below clip_cov_ub = {self.clip_cov_ub:g}")
        if self.loss_mode == "dro" and self.custom.path is None and self.dro_beta is None:
            raise refuse("dro_beta", None, "allowed: a number > 0, as loss_mode=dro has no default for it")

    @property
    def loss(self) -> str:
        """The name of the loss in use; that of the user's has the path of its file before it."""
        return self.loss_mode if self.custom.path is None else f"{self.custom.path}:{self.custom.name}"


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
    tau_pos: Positive = 1.0
    """sapo: how steep its gate is where the advantage is > 0."""
    tau_neg: Positive = 1.05
    """sapo: how steep its gate is elsewhere."""
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
