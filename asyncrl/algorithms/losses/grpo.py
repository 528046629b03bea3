"""The clipped loss of TRL, under whose aggregations ``grpo``, ``bnpo``, ``dr_grpo`` and ``dapo`` are; with a cap on the ratio
(INTELLECT-2, https://arxiv.org/abs/2505.07291) and a ratio per row (https://arxiv.org/abs/2507.18071).

Aggregated as ``loss_agg_mode`` says: see ``trl.LOSS_TYPES``.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from asyncrl.algorithms.losses.policy_loss import PolicyLoss, PolicyRows
from asyncrl.algorithms.masked import masked_mean
from asyncrl.algorithms.readings import largest, mean, read, smallest
from asyncrl.metrics import Metrics

LEVELS = ("token", "sequence")
"""The values of ``importance_sampling_level``."""


@dataclass(frozen=True, slots=True)
class GrpoOptions:
    """The names are TRL's."""

    epsilon: float = 0.2
    """The ratio is clipped below at ``1 - epsilon``."""
    epsilon_high: float | None = None
    """The ratio is clipped above at ``1 + epsilon_high``; None: ``epsilon``."""
    delta: float | None = None
    """Upper bound of the ratio that is not clipped; None: none. Above ``1 + epsilon_high`` it is the dual clip of ``vanilla``."""
    importance_sampling_level: str = "token"
    """``sequence``: the geometric mean of the row's ratios."""

    def __post_init__(self) -> None:
        if not (self.epsilon >= 0 and self.high >= 0):
            raise ValueError(f"epsilon and epsilon_high must be >= 0, got {self.epsilon} and {self.epsilon_high}")
        if self.delta is not None and not self.delta > 0:
            raise ValueError(f"delta must be > 0 or null, got {self.delta}")
        if self.importance_sampling_level not in LEVELS:
            raise ValueError(f"unknown importance_sampling_level {self.importance_sampling_level!r}; known: {', '.join(LEVELS)}")

    @property
    def high(self) -> float:
        """``epsilon_high`` in force."""
        return self.epsilon if self.epsilon_high is None else self.epsilon_high


def grpo(rows: PolicyRows, options: GrpoOptions, /) -> PolicyLoss:
    """``-min(min(r, delta) A, clip(r, 1 - epsilon, 1 + epsilon_high) A)``; nothing bounds the log ratio.

    Metrics: ``actor/clip_ratio/low_mean`` (the fraction with r below its bound and A < 0), ``.../high_mean`` (above, A > 0),
    ``.../region_mean`` (either), of tokens or, with one ratio a row, of rows; ``.../low_min`` and ``.../high_max`` over the
    fractions of the rows; ``actor/ppo_kl``.
    """
    by_row = options.importance_sampling_level == "sequence"
    ratio = torch.exp(rows.row_log_ratio() if by_row else rows.log_ratio())
    clipped = ratio.clamp(1 - options.epsilon, 1 + options.high)
    capped = ratio if options.delta is None else ratio.clamp(max=options.delta)
    losses = -torch.minimum(capped * rows.advantages, clipped * rows.advantages)
    low = (ratio < 1 - options.epsilon) & (rows.advantages < 0)
    high = (ratio > 1 + options.high) & (rows.advantages > 0)
    return rows.weighted(losses, _clip_ratios(rows, low, high, by_row) | rows.token_means(ppo_kl=-rows.log_ratio()))


@torch.no_grad()
def _clip_ratios(rows: PolicyRows, low: Tensor, high: Tensor, by_row: bool) -> Metrics:
    tokens, some = rows.response_mask, rows.response_mask.bool().any(-1)
    low_rows, high_rows, either = (masked_mean(each.double(), tokens, -1) for each in (low, high, low | high))
    readings = {
        "low_mean": mean(low_rows, some) if by_row else mean(low, tokens),
        "high_mean": mean(high_rows, some) if by_row else mean(high, tokens),
        "region_mean": mean(either, some) if by_row else mean(low | high, tokens),
        "low_min": smallest(low_rows, some),
        "high_max": largest(high_rows, some),
    }
    return {f"actor/clip_ratio/{name}": metric for name, metric in read(readings).items()}
