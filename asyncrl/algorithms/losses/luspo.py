"""LUSPO, length-unbiased sequence policy optimization, https://arxiv.org/abs/2602.05261: a row weighs by its length.

``grpo`` with one ratio a row. Its definition holds the aggregation ``seq-mean-token-sum``; ``loss_agg_mode`` does not reach it.
"""

from dataclasses import dataclass

from asyncrl.algorithms.losses.grpo import GrpoOptions, grpo
from asyncrl.algorithms.losses.policy_loss import PolicyLoss, PolicyRows


@dataclass(frozen=True, slots=True)
class LuspoOptions:
    """The names are TRL's, see ``grpo.GrpoOptions``."""

    epsilon: float = 0.2
    epsilon_high: float | None = None
    delta: float | None = None

    def __post_init__(self) -> None:
        _ = self.clip

    @property
    def clip(self) -> GrpoOptions:
        """The options of the clipped loss."""
        return GrpoOptions(self.epsilon, self.epsilon_high, self.delta, "sequence")


def luspo(rows: PolicyRows, options: LuspoOptions, /) -> PolicyLoss:
    """``-min(min(s, delta) A, clip(s) A)`` on each token of a row, with s the geometric mean of its ratios. Metrics as ``grpo``."""
    return grpo(rows, options.clip)
