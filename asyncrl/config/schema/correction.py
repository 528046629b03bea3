"""``algorithm.rollout_correction.*``, and the same options where the loss of the bypass has its own."""

import math
from collections.abc import Iterator
from typing import Literal

from asyncrl.config.schema.section import Section, known, refuse
from asyncrl.config.schema.types import Name, Positive

IsLevel = Literal["token", "sequence"]
"""What an importance weight belongs to."""
BypassLoss = Literal["ppo_clip", "reinforce"]
"""The losses of ``loss_mode=bypass_mode``."""
CRITERIA = (
    *(f"{level}_{k}" for level in ("token", "seq_sum", "seq_mean") for k in ("k1", "k2", "k3")),
    *(f"seq_max_{k}" for k in ("k2", "k3")),
)
"""What ``rollout_rs`` may list."""
Problem = tuple[str, object, str]
"""Option, value seen, what is allowed."""


class RolloutCorrection(Section, frozen=True, kw_only=True):
    """What is done about the difference between the engine's log-probs and the trainer's."""

    bypass_mode: bool = False
    """Take the engine's log-probs as ``old_log_probs`` and save the pass that computes them."""
    rollout_is: IsLevel | None = None
    """Importance weights p_train / p_rollout, of a token or of a row (the product of its tokens'); null = none."""
    rollout_is_threshold: Positive | Name = 2.0
    """One number bounds the weights above; ``lo_hi``, such as 0.5_5.0, sets a weight outside to 0 (IcePop)."""
    rollout_is_batch_normalize: bool = False
    """Divide the weights by their mean over all ranks, after their bounds."""
    rollout_rs: Name | None = None
    """Rejection: null, or a comma list of ``token_``, ``seq_sum_``, ``seq_mean_`` with ``k1``, ``k2``, ``k3``, and ``seq_max_`` with
    ``k2``, ``k3``; what fails one of them is not trained."""
    rollout_rs_threshold: Positive | Name | None = None
    """One for all, or a comma list of one each: ``lo_hi`` of p_rollout / p_train for k1 (u means 1/u_u), an upper bound for k2 and k3."""
    loss_type: BypassLoss = "ppo_clip"
    """What ``loss_mode=bypass_mode`` minimises: the clipped loss, whose ratio is the importance weight, or -A w log_prob."""
    rejected_in_denominator: bool = False
    """Divide losses also by what was rejected, as verl does. asyncrl's own."""

    def __post_init__(self) -> None:
        for problem in problems(self):
            raise refuse(*problem)

    @property
    def rejects(self) -> bool:
        """Whether tokens may leave the mask."""
        return self.rollout_rs is not None

    @property
    def decoupled(self) -> bool:
        """Whether a stage weighs or rejects against log-probs of a pass of their own."""
        return not self.bypass_mode and (self.rollout_is is not None or self.rejects)


class BypassCorrection(Section, frozen=True, kw_only=True):
    """What ``loss_mode=bypass_mode`` corrects, where it is not what ``algorithm.rollout_correction`` says."""

    rollout_is: IsLevel | None = None
    """null = ``algorithm.rollout_correction.rollout_is``."""
    rollout_is_threshold: Positive | Name | None = None
    """null = ``algorithm.rollout_correction.rollout_is_threshold``."""
    rollout_is_batch_normalize: bool | None = None
    """null = ``algorithm.rollout_correction.rollout_is_batch_normalize``."""
    rollout_rs: Name | None = None
    """null = ``algorithm.rollout_correction.rollout_rs``."""
    rollout_rs_threshold: Positive | Name | None = None
    """null = ``algorithm.rollout_correction.rollout_rs_threshold``."""
    loss_type: BypassLoss | None = None
    """null = ``algorithm.rollout_correction.loss_type``."""
    rejected_in_denominator: bool | None = None
    """null = ``algorithm.rollout_correction.rejected_in_denominator``."""

    @property
    def rejects(self) -> bool:
        """Whether tokens may leave the mask."""
        return self.rollout_rs is not None

    @property
    def threshold(self) -> str:
        """``rollout_is_threshold`` in force."""
        return str(known(self.rollout_is_threshold, f"{BYPASS}.rollout_is_threshold"))

    @property
    def normalize(self) -> bool:
        """``rollout_is_batch_normalize`` in force."""
        return known(self.rollout_is_batch_normalize, f"{BYPASS}.rollout_is_batch_normalize")

    @property
    def loss(self) -> BypassLoss:
        """``loss_type`` in force."""
        return known(self.loss_type, f"{BYPASS}.loss_type")

    @property
    def keeps_denominator(self) -> bool:
        """``rejected_in_denominator`` in force."""
        return known(self.rejected_in_denominator, f"{BYPASS}.rejected_in_denominator")


BYPASS = "actor_rollout_ref.actor.policy_loss.rollout_correction"


def problems(section: RolloutCorrection | BypassCorrection) -> Iterator[Problem]:
    """What is wrong with thresholds and criteria, which ``asyncrl.algorithms.rollout_correction`` reads the same way."""
    bounds = section.rollout_is_threshold
    if bounds is not None and not _ordered(bounds, 2):
        yield "rollout_is_threshold", bounds, "allowed: a number > 0, or lo_hi with 0 < lo <= hi, such as 0.5_5.0"
    names = criteria(section.rollout_rs)
    unknown = [name for name in names if name not in CRITERIA]
    if unknown:
        yield "rollout_rs", section.rollout_rs, f"allowed: null, or a comma list of {', '.join(CRITERIA)}"
    elif names and section.rollout_rs_threshold is None:
        yield "rollout_rs_threshold", None, f"allowed: a threshold for {section.rollout_rs}: {_FORM}"
    elif names and not _fits(names, str(section.rollout_rs_threshold)):
        yield (
            "rollout_rs_threshold",
            section.rollout_rs_threshold,
            f"allowed: one for all, or one for each of {section.rollout_rs}: {_FORM}",
        )


_FORM = "lo_hi or a number >= 1 for k1, one upper bound > 0 for k2 and k3"


def criteria(text: str | None) -> list[str]:
    """The names in a comma list."""
    return [] if text is None else [name.strip() for name in text.split(",")]


def _fits(names: list[str], text: str) -> bool:
    parts = [part.strip() for part in text.split(",")]
    if len(parts) == 1:
        parts *= len(names)
    return len(parts) == len(names) and all(_bounds(name, part) for name, part in zip(names, parts, strict=True))


def _bounds(name: str, text: str) -> bool:
    if not name.endswith("k1"):
        return _ordered(text, 1)
    # One number u bounds the ratio by 1/u and u.
    return _ordered(text, 2) and ("_" in text or 1 <= float(text) < math.inf)


def _ordered(text: float | str, most: int) -> bool:
    """Whether it is one to ``most`` numbers > 0 with ``_`` between them, none smaller than the one before."""
    try:
        numbers = [float(part) for part in str(text).split("_")]
    except ValueError:
        return False
    return len(numbers) <= most and all(number > 0 for number in numbers) and numbers == sorted(numbers)
