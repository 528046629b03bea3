"""DRO, direct reward optimisation, https://arxiv.org/abs/2405.19107: a policy gradient with a quadratic pull to the old policy.

Aggregated as ``loss_agg_mode`` says.
"""

from dataclasses import dataclass

from asyncrl.algorithms.losses.policy_loss import PolicyLoss, PolicyRows


@dataclass(frozen=True, slots=True)
class DroOptions:
    """The weight of the pull."""

    dro_beta: float
    """Greater than 0; there is no default."""

    def __post_init__(self) -> None:
        if not self.dro_beta > 0:
            raise ValueError(f"dro_beta must be > 0, got {self.dro_beta}")


def dro(rows: PolicyRows, options: DroOptions, /) -> PolicyLoss:
    """``-(A log_prob - beta / 2 (log r)^2)``. Metric: ``actor/ppo_kl``."""
    log_ratio = rows.log_ratio()
    losses = -(rows.advantages * rows.clean(rows.log_probs) - 0.5 * options.dro_beta * log_ratio.square())
    return rows.weighted(losses, rows.token_means(ppo_kl=-log_ratio))
