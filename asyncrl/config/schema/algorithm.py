"""``algorithm.*``: advantages, and the KL term in the reward."""

from typing import Literal

import msgspec

from asyncrl.config.schema.correction import RolloutCorrection
from asyncrl.config.schema.section import Section, refuse
from asyncrl.config.schema.types import Count, Fraction, KlEstimator, Name, NonNegative, NonNegativeInt, Positive

AdvEstimator = Literal[
    "gae",
    "grpo",
    "grpo_vectorized",
    "grpo_passk",
    "gdpo",
    "rloo",
    "rloo_vectorized",
    "reinforce_plus_plus",
    "reinforce_plus_plus_baseline",
    "remax",
    "opo",
    "gpg",
    "optimal_token_baseline",
    "tir_optimal_token_baseline",
]
"""The advantage estimators."""


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
    """Dynamic sampling: prompt groups whose answers are all judged the same are replaced."""

    enable: bool = False
    """Do so."""
    metric: Name = "reward"
    """What must differ: ``reward``, the score, or another value that the reward function returns."""
    max_num_gen_batches: NonNegativeInt = 0
    """At most so many times ``data.train_batch_size`` prompts for one step, which ends the run when it needs more; 0 = no limit
    but that of a run that gets nowhere."""
    max_inflight_gen_batches: Count = 1
    """``sync``: at most so many times ``data.train_batch_size`` prompts at once."""

    @property
    def gen_batches(self) -> int:
        """How many times its prompts a step may need; 0 for no limit, as without the filter."""
        return self.max_num_gen_batches if self.enable else 0


class CustomAdvEstimator(Section, frozen=True, kw_only=True):
    """An advantage estimator of the user, in place of ``adv_estimator``."""

    path: Name | None = None
    """Python file that holds it, or ``pkg://PACKAGE/FILE``; null = ``algorithm.adv_estimator``."""
    name: Name = "estimate"
    """Its name in that file: a function ``(OutcomeRows, AdvantageOptions)``, an ``OutcomeEstimator`` or a ``TokenEstimator``."""


class Algorithm(Section, frozen=True, kw_only=True):
    """From rewards to advantages."""

    adv_estimator: AdvEstimator = "gae"
    """The advantage estimator; ``docs/algorithms.md`` has the formula of each."""
    custom_adv_estimator: CustomAdvEstimator = msgspec.field(default_factory=CustomAdvEstimator)
    """An estimator of your own. asyncrl's own."""
    norm_adv_by_std_in_grpo: bool = True
    """Divide by the group's standard deviation (grpo, grpo_passk, gdpo); off = Dr.GRPO."""
    gdpo_reward_keys: tuple[Name, ...] | None = None
    """The parts of the reward that gdpo standardises one by one: names in what the reward function returns; null = its score alone."""
    gdpo_reward_weights: tuple[float, ...] | None = None
    """Their weights, in the same order; null = 1 each."""
    use_kl_in_reward: bool = False
    """Subtract the KL to the reference model from the token rewards."""
    kl_penalty: KlEstimator = "kl"
    """Estimator of that term."""
    kl_ctrl: KlControl = msgspec.field(default_factory=KlControl)
    """Weight of that term."""
    rollout_correction: RolloutCorrection = msgspec.field(default_factory=RolloutCorrection)
    """Engine against trainer."""
    gamma: Fraction = 1.0
    """Discount per sampled token (gae, reinforce_plus_plus)."""
    lam: Fraction = 1.0
    """GAE's lambda."""
    filter_groups: FilterGroups = msgspec.field(default_factory=FilterGroups)
    """Dynamic sampling."""

    def __post_init__(self) -> None:
        keys, weights = self.gdpo_reward_keys, self.gdpo_reward_weights
        if keys is not None and (not keys or len(keys) != len(dict.fromkeys(keys))):
            raise refuse("gdpo_reward_keys", list(keys), "allowed: null, or names that differ")
        if weights is not None and len(weights) != len(keys or ()):
            raise refuse(
                "gdpo_reward_weights", list(weights), f"allowed: null, or one number for each of the {len(keys or ())} gdpo_reward_keys"
            )

    @property
    def estimator(self) -> str:
        """The name of the estimator in use; that of the user's has the path of its file before it."""
        custom = self.custom_adv_estimator
        return self.adv_estimator if custom.path is None else f"{custom.path}:{custom.name}"

    @property
    def components(self) -> tuple[tuple[str, float], ...]:
        """Names and weights of the parts of the reward."""
        keys = self.gdpo_reward_keys or ()
        return tuple(zip(keys, self.gdpo_reward_weights or (1.0,) * len(keys), strict=True))
