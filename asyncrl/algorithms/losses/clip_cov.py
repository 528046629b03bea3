"""Clip-Cov, https://arxiv.org/abs/2505.22617: a few tokens of high covariance, chosen at random, get no gradient.

Aggregated as ``loss_agg_mode`` says. The choice is made out of the whole mini-batch over all ranks, see ``covariance``; what
is random is drawn per token from the row's key, so that it depends neither on the cut nor on a global generator.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from asyncrl.algorithms.losses.covariance import covariances, largest_tokens, quota
from asyncrl.algorithms.losses.policy_loss import PolicyLoss, PolicyRows, Prepared, check_clip
from asyncrl.algorithms.ranks import AllGather


@dataclass(frozen=True, slots=True)
class ClipCovOptions:
    """The trust region, and which tokens may be chosen."""

    clip_ratio_low: float = 0.2
    clip_ratio_high: float = 0.2
    clip_cov_ratio: float = 0.0002
    """Chosen tokens, as a part of the trainable ones; at least one."""
    clip_cov_lb: float = 1.0
    """A chosen token's covariance is above this,"""
    clip_cov_ub: float = 5.0
    """and below this."""

    def __post_init__(self) -> None:
        check_clip(self.clip_ratio_low, self.clip_ratio_high)
        if not 0 < self.clip_cov_ratio <= 1:
            raise ValueError(f"clip_cov_ratio must be in (0, 1], got {self.clip_cov_ratio}")
        if not self.clip_cov_lb < self.clip_cov_ub:
            raise ValueError(f"clip_cov_lb must be below clip_cov_ub, got {self.clip_cov_lb} and {self.clip_cov_ub}")


@torch.no_grad()
def prepare_clip_cov(rows: PolicyRows, options: ClipCovOptions, /, *, draws: Tensor, gather: AllGather) -> Prepared:
    """Chooses among the tokens inside the covariance band that the ratio's clip leaves alone."""
    covariance, tokens = covariances(rows, gather)
    plain, clipped, _ = _losses(rows, options)
    eligible = (options.clip_cov_lb < covariance) & (covariance < options.clip_cov_ub) & (clipped <= plain) & rows.response_mask.bool()
    count = quota(options.clip_cov_ratio, tokens)
    selected = largest_tokens(torch.zeros_like(covariance), draws, eligible, count, gather)
    return Prepared(rows.response_mask, rows.rollout_is_weights, selected, {})


def clip_cov(rows: PolicyRows, options: ClipCovOptions, /) -> PolicyLoss:
    """``max(-A r, -A clip(r, 1 - low, 1 + high))``, 0 on the ``selected`` tokens.

    The log ratio is not bounded. Metrics: ``actor/pg_clipfrac`` (the fraction selected), ``actor/ppo_kl``.
    """
    if rows.selected is None:
        raise ValueError("clip_cov needs the tokens that prepare_clip_cov selects out of the whole mini-batch")
    plain, clipped, log_ratio = _losses(rows, options)
    metrics = rows.token_means(pg_clipfrac=rows.selected, ppo_kl=-log_ratio)
    return rows.weighted(torch.where(rows.selected, 0.0, torch.maximum(plain, clipped)), metrics)


def _losses(rows: PolicyRows, options: ClipCovOptions) -> tuple[Tensor, Tensor, Tensor]:
    log_ratio, advantages = rows.log_ratio(), rows.clean(rows.advantages)
    ratio = torch.exp(log_ratio)
    return -advantages * ratio, -advantages * ratio.clamp(1 - options.clip_ratio_low, 1 + options.clip_ratio_high), log_ratio
