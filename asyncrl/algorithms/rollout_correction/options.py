"""``algorithm.rollout_correction.*`` as the functions here read it, with its thresholds parsed and refused in words."""

import math
from dataclasses import dataclass

IS_LEVELS = ("token", "sequence")
"""The values of ``rollout_is`` besides null."""
LOSS_TYPES = ("ppo_clip", "reinforce")
"""The values of ``loss_type``."""
RS_CRITERIA = (
    *(f"token_{k}" for k in ("k1", "k2", "k3")),
    *(f"seq_sum_{k}" for k in ("k1", "k2", "k3")),
    *(f"seq_mean_{k}" for k in ("k1", "k2", "k3")),
    *(f"seq_max_{k}" for k in ("k2", "k3")),
)
"""What ``rollout_rs`` may list."""


@dataclass(frozen=True, slots=True)
class WeightBounds:
    """The bounds of an importance weight ``p_train / p_rollout``."""

    lower: float = 0.0
    upper: float = math.inf
    zero_outside: bool = False
    """IcePop: a weight outside is 0. Else it is moved to the bound (truncation)."""

    def __post_init__(self) -> None:
        if not (0 <= self.lower <= self.upper and self.upper > 0):
            raise ValueError(f"the bounds of an importance weight must be positive and in order, got {self.lower:g} and {self.upper:g}")

    @property
    def low_mark(self) -> float:
        """Below this a weight counts as low in the metrics: the lower bound, or without one the reciprocal of the upper."""
        return self.lower if self.lower > 0 else 1 / self.upper


@dataclass(frozen=True, slots=True)
class Criterion:
    """One test that tokens or rows must pass; which values those are, see ``rejection``."""

    name: str
    lower: float
    upper: float

    @property
    def level(self) -> str:
        """``token``, ``seq_sum``, ``seq_mean`` or ``seq_max``."""
        return self.name.rpartition("_")[0]

    @property
    def estimator(self) -> str:
        """``k1``, ``k2`` or ``k3``."""
        return self.name.rpartition("_")[2]


@dataclass(frozen=True, slots=True)
class RolloutCorrectionOptions:
    """The names are verl's but for the last, which is ours."""

    rollout_is: str | None = None
    """Importance weights: null, ``token`` or ``sequence`` (the product over the row)."""
    rollout_is_threshold: float | str = 2.0
    """One number truncates above; ``lo_hi`` sets weights outside to 0 (IcePop)."""
    rollout_is_batch_normalize: bool = False
    """Divide the weights by their mean over the batch, after truncation."""
    rollout_rs: str | None = None
    """Rejection: null, or a comma list out of ``RS_CRITERIA``; a token is kept if it passes all."""
    rollout_rs_threshold: float | str | None = None
    """One threshold for all criteria, or a comma list with one each. k1: ``lo_hi``, bounds of p_rollout / p_train (one number u
    means ``1/u_u``). k2, k3: an upper bound."""
    loss_type: str = "ppo_clip"
    """The loss of ``loss_mode=bypass_mode``: ``ppo_clip`` or ``reinforce``."""
    rejected_in_denominator: bool = False
    """Keep rejected tokens and rows in the loss's denominators, as verl does: rejection then shrinks the loss."""

    def __post_init__(self) -> None:
        if self.rollout_is is not None and self.rollout_is not in IS_LEVELS:
            raise ValueError(f"unknown rollout_is {self.rollout_is!r}; known: null, {', '.join(IS_LEVELS)}")
        if self.loss_type not in LOSS_TYPES:
            raise ValueError(f"unknown loss_type {self.loss_type!r}; known: {', '.join(LOSS_TYPES)}")
        if self.rollout_is is not None:
            _ = self.bounds
        _ = self.criteria

    @property
    def bounds(self) -> WeightBounds:
        """``rollout_is_threshold``, parsed."""
        parts = str(self.rollout_is_threshold).split("_")
        numbers = [_number("rollout_is_threshold", part) for part in parts]
        if len(numbers) > 2 or not all(number > 0 for number in numbers):
            raise ValueError(f"rollout_is_threshold must be a number > 0 or lo_hi, got {self.rollout_is_threshold!r}")
        return WeightBounds(upper=numbers[0]) if len(numbers) == 1 else WeightBounds(numbers[0], numbers[1], zero_outside=True)

    @property
    def criteria(self) -> tuple[Criterion, ...]:
        """``rollout_rs`` with its thresholds, parsed; empty when nothing is rejected."""
        if self.rollout_rs is None:
            return ()
        names = [name.strip() for name in self.rollout_rs.split(",")]
        unknown = [name for name in names if name not in RS_CRITERIA]
        if unknown:
            raise ValueError(f"unknown rollout_rs {', '.join(map(repr, unknown))}; known: {', '.join(RS_CRITERIA)}")
        if self.rollout_rs_threshold is None:
            raise ValueError(f"rollout_rs {self.rollout_rs!r} needs a rollout_rs_threshold")
        thresholds = [part.strip() for part in str(self.rollout_rs_threshold).split(",")]
        if len(thresholds) == 1:
            thresholds *= len(names)
        if len(thresholds) != len(names):
            raise ValueError(f"rollout_rs_threshold has {len(thresholds)} thresholds for {len(names)} criteria: one for all, or one each")
        return tuple(_criterion(name, threshold) for name, threshold in zip(names, thresholds, strict=True))


def _criterion(name: str, threshold: str) -> Criterion:
    numbers = [_number("rollout_rs_threshold", part) for part in threshold.split("_")]
    if not all(number > 0 for number in numbers):
        raise ValueError(f"rollout_rs_threshold must be > 0, got {threshold!r} for {name}")
    if not name.endswith("k1"):
        if len(numbers) != 1:
            raise ValueError(f"{name} takes one upper bound, got {threshold!r}")
        return Criterion(name, -math.inf, numbers[0])
    lower, upper = (1 / numbers[0], numbers[0]) if len(numbers) == 1 else (numbers[0], numbers[-1])
    if len(numbers) > 2 or lower > upper or lower == 0:
        raise ValueError(f"{name} takes bounds lo_hi with lo <= hi, or one number u >= 1 for 1/u_u; got {threshold!r}")
    return Criterion(name, math.log(lower), math.log(upper))


def _number(option: str, text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise ValueError(f"{option} holds {text!r}, which is not a number") from None
