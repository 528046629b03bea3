"""KL as a part of the reward: ``reward = score - beta * KL(old policy || reference)``, and what sets beta.

Call these functions without padding rows: they would count in the mean that drives an adaptive beta.
"""

from dataclasses import dataclass, replace

from torch import Tensor

from asyncrl.algorithms.kl import kl_penalty
from asyncrl.algorithms.masked import masked, masked_mean, masked_sum
from asyncrl.metrics import Last, Mean, Metrics


@dataclass(frozen=True, slots=True)
class FixedKL:
    """A beta that stays as it is."""

    coefficient: float

    def updated(self, current_kl: float, rows: int) -> "FixedKL":
        """The controller of the next step: this one."""
        return self


@dataclass(frozen=True, slots=True)
class AdaptiveKL:
    """A beta that follows a target KL, https://arxiv.org/abs/1909.08593, section 2.2.

    ``beta <- beta * (1 + clip(kl / target - 1, -0.2, 0.2) * rows / horizon)``.
    """

    coefficient: float
    target: float
    horizon: float

    def __post_init__(self) -> None:
        if self.target <= 0 or self.horizon <= 0:
            raise ValueError(f"target_kl and horizon must be > 0, got {self.target} and {self.horizon}")

    def updated(self, current_kl: float, rows: int) -> "AdaptiveKL":
        """The controller of the next step, after ``rows`` rows whose mean KL was ``current_kl``."""
        error = min(max(current_kl / self.target - 1.0, -0.2), 0.2)
        return replace(self, coefficient=self.coefficient * (1.0 + error * rows / self.horizon))


def kl_controller(kind: str, coefficient: float, target: float = 0.1, horizon: float = 10000.0) -> FixedKL | AdaptiveKL:
    """The controller by its name, ``fixed`` or ``adaptive``. Raises ValueError for another name."""
    if kind == "fixed":
        return FixedKL(coefficient)
    if kind == "adaptive":
        return AdaptiveKL(coefficient, target, horizon)
    raise ValueError(f"unknown KL controller {kind!r}; known: fixed, adaptive")


def row_kl(old_log_probs: Tensor, ref_log_prob: Tensor, response_mask: Tensor, kl_type: str) -> tuple[Tensor, Tensor]:
    """Sum and mean over the tokens of each row's KL: two [N] tensors; 0 for a row without trainable tokens.

    An outcome estimator needs no more than ``scores - beta * sum``.
    """
    kl = _token_kl(old_log_probs, ref_log_prob, response_mask, kl_type)
    return masked_sum(kl, response_mask, -1), masked_mean(kl, response_mask, -1)


def penalised_rewards(
    token_scores: Tensor, old_log_probs: Tensor, ref_log_prob: Tensor, response_mask: Tensor, *, coefficient: float, kl_type: str
) -> tuple[Tensor, Metrics]:
    """``token_scores - coefficient * KL`` on the trainable tokens.

    All tensors [N, R]. Returns the token rewards [N, R] and ``actor/reward_kl_penalty`` (mean over rows of the row's
    mean KL) with ``actor/reward_kl_penalty_coeff`` (the coefficient used here, before any update). A score on an
    untrained token is kept.
    """
    kl = _token_kl(old_log_probs, ref_log_prob, response_mask, kl_type)
    means = masked_mean(kl, response_mask, -1)
    metrics: Metrics = {
        "actor/reward_kl_penalty": Mean(float(means.sum()), float(means.numel())),
        "actor/reward_kl_penalty_coeff": Last(coefficient),
    }
    return token_scores - coefficient * kl, metrics


def _token_kl(old_log_probs: Tensor, ref_log_prob: Tensor, response_mask: Tensor, kl_type: str) -> Tensor:
    kl = kl_penalty(masked(old_log_probs, response_mask), masked(ref_log_prob, response_mask), kl_type)
    return masked(kl, response_mask)
