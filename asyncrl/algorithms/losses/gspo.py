"""GSPO, group sequence policy optimization, https://arxiv.org/abs/2507.18071: one ratio a row. Aggregated as
``loss_agg_mode`` says; the paper's own is ``seq-mean-token-mean``."""

from dataclasses import dataclass

import torch

from asyncrl.algorithms.kl import straight_through
from asyncrl.algorithms.losses.policy_loss import PolicyLoss, PolicyRows, check_clip
from asyncrl.algorithms.masked import masked_mean

LOG_BOUND = 10.0


@dataclass(frozen=True, slots=True)
class GspoOptions:
    """The trust region of a row's ratio; the paper's is narrow, 3e-4 and 4e-4."""

    clip_ratio_low: float = 0.2
    clip_ratio_high: float = 0.2

    def __post_init__(self) -> None:
        check_clip(self.clip_ratio_low, self.clip_ratio_high)


def gspo(rows: PolicyRows, options: GspoOptions, /) -> PolicyLoss:
    """``max(-A s, -A clip(s, 1 - low, 1 + high))`` with s the geometric mean of the row's ratios.

    The value of s is one number a row; its gradient goes through the log-prob of each token on its own, so that a token's
    advantage weighs that token. log s is bounded above at 10. Metrics as ``vanilla``, ``actor/pg_clipfrac_lower`` always 0.
    """
    log_ratio = rows.log_ratio()
    row = masked_mean(log_ratio.detach(), rows.response_mask, -1).unsqueeze(-1).expand_as(log_ratio)
    ratio = torch.exp(straight_through(row, log_ratio).clamp(max=LOG_BOUND))
    plain = -rows.advantages * ratio
    clipped = -rows.advantages * ratio.clamp(1 - options.clip_ratio_low, 1 + options.clip_ratio_high)
    metrics = rows.token_means(pg_clipfrac=clipped > plain, pg_clipfrac_lower=torch.zeros_like(row), ppo_kl=-log_ratio)
    return rows.weighted(torch.maximum(plain, clipped), metrics)
