"""VESPO, variational sequence-level soft policy optimization, https://arxiv.org/abs/2602.10693: a gamma-shaped weight per row.

Aggregated as ``loss_agg_mode`` says; TRL's own is ``token-mean``.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from asyncrl.algorithms.losses.policy_loss import LOG_RATIO_BOUND, PolicyLoss, PolicyRows
from asyncrl.algorithms.masked import first_of_row, masked_sum
from asyncrl.algorithms.readings import mean, read

LOG_FLOOR = math.log(1e-8)


@dataclass(frozen=True, slots=True)
class VespoOptions:
    """The shape of the weight, where the advantage is >= 0 and where it is < 0; the names are TRL's."""

    vespo_k_pos: float = 2.0
    vespo_lambda_pos: float = 3.0
    vespo_k_neg: float = 3.0
    vespo_lambda_neg: float = 2.0

    def __post_init__(self) -> None:
        if not (self.vespo_lambda_pos > 0 and self.vespo_lambda_neg > 0):
            raise ValueError(f"vespo_lambda_* must be > 0, got {self.vespo_lambda_pos} and {self.vespo_lambda_neg}")


def vespo(rows: PolicyRows, options: VespoOptions, /) -> PolicyLoss:
    """``-A sg(phi(w)) log_prob`` with ``phi(w) = w^k exp(lambda (1 - w))``, 1 at w = 1, and w the product of the row's ratios.

    ``rollout_is_weights`` enter w, and only there. Token log ratios are bounded to +-20, log w to log 1e-8 and 20. Metrics:
    ``actor/vespo/phi_seq_mean`` (phi over rows), ``actor/ppo_kl``.
    """
    phi = torch.exp(_log_phi(rows, options))
    losses = -rows.advantages * phi * rows.clean(rows.log_probs)
    row_phi, some = first_of_row(phi, rows.response_mask), rows.response_mask.bool().any(-1)
    metrics = read({"actor/vespo/phi_seq_mean": mean(row_phi, some)})
    return PolicyLoss(rows.clean(losses), metrics | rows.token_means(ppo_kl=-rows.log_ratio()))


@torch.no_grad()
def _log_phi(rows: PolicyRows, options: VespoOptions) -> Tensor:
    """[N, R]: of a row's weight, by the sign of each token's advantage."""
    log_weight = masked_sum(rows.log_ratio(LOG_RATIO_BOUND), rows.response_mask, -1)
    if rows.rollout_is_weights is not None:
        weights = rows.clean(torch.log(rows.rollout_is_weights).clamp(LOG_FLOOR, LOG_RATIO_BOUND))
        log_weight = log_weight + weights.sum(-1)
    log_weight = log_weight.clamp(LOG_FLOOR, LOG_RATIO_BOUND).unsqueeze(-1)
    up = rows.advantages >= 0
    k, scale = (
        torch.where(up, log_weight.new_tensor(positive), log_weight.new_tensor(negative))
        for positive, negative in (
            (options.vespo_k_pos, options.vespo_k_neg),
            (options.vespo_lambda_pos, options.vespo_lambda_neg),
        )
    )
    return k * log_weight + scale * (1 - torch.exp(log_weight))
