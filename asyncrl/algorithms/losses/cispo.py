"""CISPO, clipped importance-sampling policy optimization, https://arxiv.org/abs/2506.13585: the weight is clipped, never the
gradient. Aggregated as ``loss_agg_mode`` says."""

from dataclasses import dataclass

import torch

from asyncrl.algorithms.losses.policy_loss import LOG_RATIO_BOUND, PolicyLoss, PolicyRows, check_clip


@dataclass(frozen=True, slots=True)
class CispoOptions:
    """The bounds of the importance weight: ``1 - clip_ratio_low`` (at least 1 switches it off) and ``1 + clip_ratio_high``."""

    clip_ratio_low: float = 0.2
    clip_ratio_high: float = 0.2

    def __post_init__(self) -> None:
        check_clip(self.clip_ratio_low, self.clip_ratio_high)


def cispo(rows: PolicyRows, options: CispoOptions, /) -> PolicyLoss:
    """``-A sg(clip(r, 1 - low, 1 + high)) log_prob``: every token keeps a gradient.

    The log ratio is bounded to +-20. Metrics: ``actor/pg_clipfrac`` (the weight was clipped), ``actor/pg_clipfrac_lower`` (0),
    ``actor/ppo_kl``.
    """
    log_ratio = rows.log_ratio(LOG_RATIO_BOUND).detach()
    ratio = torch.exp(log_ratio)
    weight = ratio.clamp(1 - options.clip_ratio_low, 1 + options.clip_ratio_high)
    metrics = rows.token_means(pg_clipfrac=weight != ratio, pg_clipfrac_lower=torch.zeros_like(ratio), ppo_kl=-log_ratio)
    return rows.weighted(-rows.advantages * weight * rows.clean(rows.log_probs), metrics)
