"""GPG, group policy gradient, https://arxiv.org/abs/2504.02546: REINFORCE without a ratio. Aggregated as ``loss_agg_mode`` says."""

from dataclasses import dataclass

from asyncrl.algorithms.losses.policy_loss import PolicyLoss, PolicyRows


@dataclass(frozen=True, slots=True)
class GpgOptions:
    """GPG has none."""


def gpg(rows: PolicyRows, options: GpgOptions, /) -> PolicyLoss:
    """``-A log_prob``; ``old_log_probs`` are not read. No metrics."""
    return rows.weighted(-rows.advantages * rows.clean(rows.log_probs), {})
