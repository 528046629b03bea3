"""KL-Cov, https://arxiv.org/abs/2505.22617: the tokens of highest covariance get a KL term.

Aggregated as ``loss_agg_mode`` says. The choice is made out of the whole mini-batch over all ranks, see ``covariance``.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from asyncrl.algorithms.losses.covariance import covariances, largest_tokens, quota
from asyncrl.algorithms.losses.policy_loss import PolicyLoss, PolicyRows, Prepared
from asyncrl.algorithms.ranks import AllGather


@dataclass(frozen=True, slots=True)
class KlCovOptions:
    """How many tokens get the term, and its weight."""

    kl_cov_ratio: float = 0.0002
    """Chosen tokens, as a part of the trainable ones; at least one."""
    ppo_kl_coef: float = 0.1

    def __post_init__(self) -> None:
        if not 0 < self.kl_cov_ratio <= 1:
            raise ValueError(f"kl_cov_ratio must be in (0, 1], got {self.kl_cov_ratio}")
        if not self.ppo_kl_coef >= 0:
            raise ValueError(f"ppo_kl_coef must be >= 0, got {self.ppo_kl_coef}")


@torch.no_grad()
def prepare_kl_cov(rows: PolicyRows, options: KlCovOptions, /, *, draws: Tensor, gather: AllGather) -> Prepared:
    """Chooses the tokens with the largest covariances."""
    covariance, tokens = covariances(rows, gather)
    selected = largest_tokens(covariance, draws, rows.response_mask.bool(), quota(options.kl_cov_ratio, tokens), gather)
    return Prepared(rows.response_mask, rows.rollout_is_weights, selected, {})


def kl_cov(rows: PolicyRows, options: KlCovOptions, /) -> PolicyLoss:
    """``-A r``, and ``+ ppo_kl_coef * abs(log r)`` on the ``selected`` tokens.

    The log ratio is not bounded. Metric: ``actor/ppo_kl``, here the mean of ``abs(log r)``.
    """
    if rows.selected is None:
        raise ValueError("kl_cov needs the tokens that prepare_kl_cov selects out of the whole mini-batch")
    log_ratio = rows.log_ratio()
    distance = log_ratio.abs()
    losses = -rows.advantages * torch.exp(log_ratio) + torch.where(rows.selected, options.ppo_kl_coef * distance, 0.0)
    return rows.weighted(losses, rows.token_means(ppo_kl=distance))
