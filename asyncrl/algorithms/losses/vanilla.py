"""PPO's clipped loss, https://arxiv.org/abs/1707.06347, with an asymmetric clip (https://arxiv.org/abs/2503.14476) and the
dual clip of https://arxiv.org/abs/1912.09729. Aggregated as ``loss_agg_mode`` says."""

from dataclasses import dataclass

import torch

from asyncrl.algorithms.losses.policy_loss import LOG_RATIO_BOUND, PolicyLoss, PolicyRows, check_clip, check_dual_clip, held


@dataclass(frozen=True, slots=True)
class VanillaOptions:
    """The trust region of a ratio ``exp(log_prob - old_log_prob)``."""

    clip_ratio_low: float = 0.2
    """The ratio is clipped below at ``1 - clip_ratio_low``; any number >= 0, also above 1."""
    clip_ratio_high: float = 0.2
    """The ratio is clipped above at ``1 + clip_ratio_high``."""
    clip_ratio_c: float = 3.0
    """Dual clip: with a negative advantage a token's loss is at most ``c * abs(advantage)``. Greater than 1."""

    def __post_init__(self) -> None:
        check_clip(self.clip_ratio_low, self.clip_ratio_high)
        check_dual_clip(self.clip_ratio_c)


def vanilla(rows: PolicyRows, options: VanillaOptions, /) -> PolicyLoss:
    """``max(-A r, -A clip(r, 1 - low, 1 + high))``, and for A < 0 at most ``-A c``, with r = exp(log_prob - old_log_prob).

    That is ``-A`` times r, bounded to at most ``1 + high`` where A >= 0, and to ``[1 - low, c]`` where A < 0. The log ratio is
    bounded to +-20. Metrics are means over trainable tokens: ``actor/pg_clipfrac`` (r beyond the trust region on the side that
    the advantage drives it to), ``actor/pg_clipfrac_lower`` (the dual clip bites), ``actor/ppo_kl`` (old - new log-prob).
    """
    log_ratio = rows.log_ratio(LOG_RATIO_BOUND)
    ratio = torch.exp(log_ratio)
    floor, roof, ceiling = 1 - options.clip_ratio_low, 1 + options.clip_ratio_high, options.clip_ratio_c
    free, negative = ratio.detach(), rows.advantages < 0
    bounded = held(ratio, torch.where(negative, free.clamp(floor, ceiling), free.clamp(max=roof)))
    beyond = torch.where(negative, ratio < floor, (ratio > roof) & (rows.advantages > 0))
    metrics = rows.token_means(pg_clipfrac=beyond, pg_clipfrac_lower=negative & (ratio > ceiling), ppo_kl=-log_ratio)
    return rows.weighted(-rows.advantages * bounded, metrics)
