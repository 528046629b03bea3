"""What a policy loss takes and returns."""

from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from asyncrl.metrics import Metrics


@dataclass(frozen=True, slots=True)
class ClipConfig:
    """The trust region of a ratio ``exp(log_prob - old_log_prob)``."""

    low: float
    """The ratio is clipped below at ``1 - low``; any number >= 0, also above 1."""
    high: float
    """The ratio is clipped above at ``1 + high``."""
    c: float = 3.0
    """Dual clip: with a negative advantage a token's loss is at most ``c * abs(advantage)``. Greater than 1."""

    def __post_init__(self) -> None:
        if self.low < 0 or self.high < 0:
            raise ValueError(f"clip_ratio_low and clip_ratio_high must be >= 0, got {self.low} and {self.high}")
        if self.c <= 1:
            raise ValueError(f"clip_ratio_c must be > 1, got {self.c}")


@dataclass(frozen=True, slots=True)
class PolicyLoss:
    """Token losses, not yet aggregated, and what is worth reporting."""

    losses: Tensor
    """[N, R], 0 under the mask."""
    metrics: Metrics


class PolicyLossFunction(Protocol):
    """The signature of every file here; all tensors [N, R]."""

    def __call__(
        self,
        log_probs: Tensor,
        old_log_probs: Tensor,
        advantages: Tensor,
        response_mask: Tensor,
        config: ClipConfig,
        *,
        rollout_is_weights: Tensor | None = None,
    ) -> PolicyLoss: ...
