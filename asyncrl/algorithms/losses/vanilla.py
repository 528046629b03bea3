"""PPO's clipped loss, https://arxiv.org/abs/1707.06347, with an asymmetric clip and the dual clip of
https://arxiv.org/abs/1912.09729."""

import torch
from torch import Tensor

from asyncrl.algorithms.losses.policy_loss import ClipConfig, PolicyLoss
from asyncrl.algorithms.masked import masked, masked_sum
from asyncrl.metrics import Mean, Metrics

LOG_RATIO_BOUND = 20.0


def vanilla(
    log_probs: Tensor,
    old_log_probs: Tensor,
    advantages: Tensor,
    response_mask: Tensor,
    config: ClipConfig,
    *,
    rollout_is_weights: Tensor | None = None,
) -> PolicyLoss:
    """``max(-A r, -A clip(r, 1 - low, 1 + high))``, and for A < 0 at most ``-A c``, with r = exp(log_prob - old_log_prob).

    All tensors [N, R]. The log ratio is bounded to +-20, beyond which its gradient is 0. ``rollout_is_weights``
    multiply the losses after the clip. Metrics are means over trainable tokens: ``actor/pg_clipfrac`` (the clipped term
    is the larger one), ``actor/pg_clipfrac_lower`` (the dual clip bites), ``actor/ppo_kl`` (old - new log-prob).
    """
    # Masked at both ends, here and on return, nothing in between can carry a NaN to a value or a gradient.
    log_ratio = masked(log_probs - old_log_probs, response_mask).clamp(-LOG_RATIO_BOUND, LOG_RATIO_BOUND)
    ratio = torch.exp(log_ratio)
    plain = -advantages * ratio
    clipped = -advantages * ratio.clamp(1 - config.low, 1 + config.high)
    upper = torch.maximum(plain, clipped)
    ceiling = -advantages * config.c
    losses = torch.where(advantages < 0, torch.minimum(upper, ceiling), upper)
    if rollout_is_weights is not None:
        losses = losses * rollout_is_weights
    metrics = _token_means(
        {
            "actor/pg_clipfrac": clipped > plain,
            "actor/pg_clipfrac_lower": (upper > ceiling) & (advantages < 0),
            "actor/ppo_kl": -log_ratio,
        },
        response_mask,
    )
    return PolicyLoss(masked(losses, response_mask), metrics)


@torch.no_grad()
def _token_means(values: dict[str, Tensor], response_mask: Tensor) -> Metrics:
    """Means over the mask, read from the device in one transfer."""
    totals = [masked_sum(value.double(), response_mask) for value in values.values()]
    *sums, tokens = torch.stack([*totals, response_mask.bool().sum().double()]).tolist()
    return {name: Mean(total, tokens) for name, total in zip(values, sums, strict=True)}
