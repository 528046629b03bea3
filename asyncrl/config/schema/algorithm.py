"""``algorithm.*``: advantages, and the KL term in the reward."""

from typing import Annotated, Literal

import msgspec

from asyncrl.config.schema.section import Section
from asyncrl.config.schema.types import Count, KlEstimator, NonNegative, Positive

One = Annotated[float, msgspec.Meta(ge=1.0, le=1.0)]


class KlControl(Section, frozen=True, kw_only=True):
    """The weight of the KL term in the reward."""

    type: Literal["fixed", "adaptive"] = "fixed"
    """``adaptive`` moves the weight towards ``target_kl``."""
    kl_coef: NonNegative = 0.001
    """The weight, or its start."""
    horizon: Count = 10000
    """Rows over which the adaptive weight moves."""
    target_kl: Positive = 0.1
    """What the adaptive weight aims at."""


class FilterGroups(Section, frozen=True, kw_only=True):
    """Dynamic sampling: prompt groups whose rewards are all the same are replaced."""

    enable: Literal[False] = False
    """Only off in this version."""


class RolloutCorrection(Section, frozen=True, kw_only=True):
    """What is done about the difference between the engine's log-probs and the trainer's."""

    bypass_mode: bool = False
    """Take the engine's log-probs as ``old_log_probs`` and save the pass that computes them."""


class Algorithm(Section, frozen=True, kw_only=True):
    """From rewards to advantages."""

    adv_estimator: Literal["grpo"] = "grpo"
    """The advantage estimator."""
    norm_adv_by_std_in_grpo: bool = True
    """Divide by the group's standard deviation; off = Dr.GRPO."""
    use_kl_in_reward: bool = False
    """Subtract the KL to the reference model from the token rewards."""
    kl_penalty: KlEstimator = "kl"
    """Estimator of that term."""
    kl_ctrl: KlControl = msgspec.field(default_factory=KlControl)
    """Weight of that term."""
    rollout_correction: RolloutCorrection = msgspec.field(default_factory=RolloutCorrection)
    """Engine against trainer."""
    gamma: One = 1.0
    """Discount; grpo has none."""
    lam: One = 1.0
    """GAE's lambda; grpo has none."""
    filter_groups: FilterGroups = msgspec.field(default_factory=FilterGroups)
    """Dynamic sampling."""
