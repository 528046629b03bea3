"""DPPO with a binary KL as its divergence: of the two-way distribution "the sampled token or any other"."""

import torch
from torch import Tensor

from asyncrl.algorithms.losses.dppo import DppoOptions, kept_tokens_loss
from asyncrl.algorithms.losses.policy_loss import PolicyLoss, PolicyRows


def dppo_kl(rows: PolicyRows, options: DppoOptions, /) -> PolicyLoss:
    """Keeps a token while ``KL(p_old || p)`` is within its bound, or while the step would bring p back towards p_old.

    p is the probability of the sampled token, ``KL = p_old log(p_old / p) + (1 - p_old) log((1 - p_old) / (1 - p))``; the
    bound is ``clip_ratio_high`` where A > 0, else ``clip_ratio_low``. The loss is that of ``dppo.kept_tokens_loss``.
    """
    new, old = rows.clean(rows.log_probs.detach()), rows.clean(rows.old_log_probs)
    divergence = binary_kl(old, new)
    up = rows.advantages > 0
    inside = torch.where(up, divergence <= options.clip_ratio_high, divergence <= options.clip_ratio_low)
    return kept_tokens_loss(rows, inside | torch.where(up, new <= old, new >= old), options)


def binary_kl(left: Tensor, right: Tensor) -> Tensor:
    """KL of two Bernoulli distributions, given the log-probs of their first outcomes."""
    other_left, other_right = (-torch.expm1(values.clamp(max=0.0)) for values in (left, right))
    floor = torch.finfo(left.dtype).tiny
    rest = other_left * (torch.log(other_left.clamp(min=floor)) - torch.log(other_right.clamp(min=floor)))
    return torch.exp(left) * (left - right) + rest
