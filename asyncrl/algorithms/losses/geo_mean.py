"""GMPO, geometric-mean policy optimization, https://arxiv.org/abs/2507.20673: the geometric mean of a row's clipped ratios.

One loss a row, averaged over the rows of the whole mini-batch that have a trainable token, as every other loss here (in
verl over all rows of the micro-batch, so that its number depends on the cut); ``loss_agg_mode`` does not reach it.
"""

from dataclasses import dataclass

import torch

from asyncrl.algorithms.losses.policy_loss import PolicyLoss, PolicyRows, check_clip
from asyncrl.algorithms.masked import masked_mean


@dataclass(frozen=True, slots=True)
class GeoMeanOptions:
    """The bounds of a token's log ratio; the paper's are 0.4 and 0.4."""

    clip_ratio_low: float = 0.2
    clip_ratio_high: float = 0.2

    def __post_init__(self) -> None:
        check_clip(self.clip_ratio_low, self.clip_ratio_high)


def geo_mean(rows: PolicyRows, options: GeoMeanOptions, /) -> PolicyLoss:
    """``-mean(A) exp(mean(d))`` of a row, d the log ratio bounded where the bound makes the row's loss larger.

    With A >= 0 d is at most ``clip_ratio_high``, with A < 0 at least ``-clip_ratio_low``. Importance weights enter by their
    geometric mean over the row. The row's number stands on each of its tokens, for ``seq-mean-token-mean``. Metrics:
    ``actor/pg_clipfrac`` and ``actor/pg_clipfrac_lower`` (log ratio out of the bounds, A > 0 and A < 0), ``actor/ppo_kl``.
    """
    log_ratio, advantages, mask = rows.log_ratio(), rows.clean(rows.advantages), rows.response_mask
    bounded = log_ratio.clamp(-options.clip_ratio_low, options.clip_ratio_high)
    sign = torch.sign(advantages)
    pessimistic = sign * torch.minimum(sign * log_ratio, sign * bounded)
    losses = -masked_mean(advantages, mask, -1) * torch.exp(masked_mean(pessimistic, mask, -1))
    if rows.rollout_is_weights is not None:
        losses = losses * torch.exp(masked_mean(torch.log(rows.clean(rows.rollout_is_weights) + 1e-10), mask, -1))
    outside = log_ratio != bounded
    metrics = rows.token_means(pg_clipfrac=outside & (sign > 0), pg_clipfrac_lower=outside & (sign < 0), ppo_kl=-log_ratio)
    return PolicyLoss(rows.clean(losses.unsqueeze(-1).expand_as(log_ratio)), metrics)
