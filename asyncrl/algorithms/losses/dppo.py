"""What the two DPPO losses share: a policy gradient on the tokens inside a divergence bound, not inside a ratio bound.

DPPO, divergence proximal policy optimization, https://arxiv.org/abs/2602.04879. Aggregated as ``loss_agg_mode`` says.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from asyncrl.algorithms.losses.policy_loss import LOG_RATIO_BOUND, PolicyLoss, PolicyRows, check_clip, check_dual_clip


@dataclass(frozen=True, slots=True)
class DppoOptions:
    """The divergence that a token may have, and the largest importance weight."""

    clip_ratio_low: float = 0.2
    """Bound for tokens with an advantage <= 0."""
    clip_ratio_high: float = 0.2
    """Bound for tokens with an advantage > 0."""
    clip_ratio_c: float = 3.0
    """Upper bound of the ratio that weighs a token. Greater than 1. verl's own default of 20 for DPPO is never reached there."""

    def __post_init__(self) -> None:
        check_clip(self.clip_ratio_low, self.clip_ratio_high)
        check_dual_clip(self.clip_ratio_c)


def kept_tokens_loss(rows: PolicyRows, keep: Tensor, options: DppoOptions) -> PolicyLoss:
    """``-A sg(min(r, c)) log_prob`` on the tokens of ``keep`` [N, R], 0 on the others.

    Metrics: ``actor/pg_clipfrac`` (the fraction dropped), ``actor/pg_clipfrac_lower`` (kept, with a ratio above c), ``actor/ppo_kl``.
    """
    log_ratio = rows.log_ratio(LOG_RATIO_BOUND).detach()
    ratio = torch.exp(log_ratio)
    weight = ratio.clamp(max=options.clip_ratio_c)
    losses = -rows.advantages * weight * rows.clean(rows.log_probs)
    metrics = rows.token_means(pg_clipfrac=~keep, pg_clipfrac_lower=keep & (ratio > weight), ppo_kl=-log_ratio)
    return rows.weighted(torch.where(keep, losses, 0.0), metrics)
