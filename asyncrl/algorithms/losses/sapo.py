"""SAPO, soft adaptive policy optimization, https://arxiv.org/abs/2511.20347: a smooth gate in place of a clip.

Its definition holds the aggregation ``seq-mean-token-mean``; ``loss_agg_mode`` does not reach it.
"""

from dataclasses import dataclass

import torch

from asyncrl.algorithms.losses.policy_loss import LOG_RATIO_BOUND, PolicyLoss, PolicyRows


@dataclass(frozen=True, slots=True)
class SapoOptions:
    """How steep the gate is."""

    tau_pos: float = 1.0
    """Where the advantage is > 0."""
    tau_neg: float = 1.05
    """Elsewhere."""

    def __post_init__(self) -> None:
        if not (self.tau_pos > 0 and self.tau_neg > 0):
            raise ValueError(f"tau_pos and tau_neg must be > 0, got {self.tau_pos} and {self.tau_neg}")


def sapo(rows: PolicyRows, options: SapoOptions, /) -> PolicyLoss:
    """``-A (4 / tau) sigmoid(tau (r - 1))``, whose slope at r = 1 is that of the plain ratio.

    The log ratio is bounded to +-20. Metrics: ``actor/ppo_kl``; ``actor/pg_clipfrac`` and ``_lower`` are 0, nothing is clipped.
    """
    log_ratio = rows.log_ratio(LOG_RATIO_BOUND)
    tau = torch.where(rows.advantages > 0, log_ratio.new_tensor(options.tau_pos), log_ratio.new_tensor(options.tau_neg))
    gate = torch.sigmoid(tau * (torch.exp(log_ratio) - 1)) * (4 / tau)
    nothing = torch.zeros_like(log_ratio)
    return rows.weighted(-rows.advantages * gate, rows.token_means(pg_clipfrac=nothing, pg_clipfrac_lower=nothing, ppo_kl=-log_ratio))
