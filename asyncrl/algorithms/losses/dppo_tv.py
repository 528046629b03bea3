"""DPPO with the total variation of the sampled token as its divergence: the change of the token's probability."""

import torch

from asyncrl.algorithms.losses.dppo import DppoOptions, kept_tokens_loss
from asyncrl.algorithms.losses.policy_loss import PolicyLoss, PolicyRows


def dppo_tv(rows: PolicyRows, options: DppoOptions, /) -> PolicyLoss:
    """Keeps a token while ``p - p_old <= clip_ratio_high`` (A > 0) or ``p - p_old >= -clip_ratio_low`` (else).

    p is the probability of the sampled token. The loss is that of ``dppo.kept_tokens_loss``.
    """
    change = torch.exp(rows.clean(rows.log_probs.detach())) - torch.exp(rows.clean(rows.old_log_probs))
    keep = torch.where(rows.advantages > 0, change <= options.clip_ratio_high, change >= -options.clip_ratio_low)
    return kept_tokens_loss(rows, keep, options)
