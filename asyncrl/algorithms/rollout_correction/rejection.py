"""Rejection: tokens or whole rows that drifted too far between rollout and training leave the loss.

With ``d = log p_rollout - log p_train`` of a sampled token, bounded to +-20: k1 = d, k2 = d^2 / 2, k3 = exp(-d) - 1 + d. A
criterion looks at the token's own value, or at the sum, mean or maximum over the row and then at all its tokens alike.

Mind the direction: k1 bounds p_rollout / p_train, the *inverse* of the importance weight that ``rollout_is_threshold`` bounds.
"""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch.nn.functional import pad

from asyncrl.algorithms.masked import masked, masked_mean, masked_sum
from asyncrl.algorithms.readings import Reading, deviation, largest, mean, smallest
from asyncrl.algorithms.rollout_correction.options import Criterion
from asyncrl.algorithms.rollout_correction.weights import LOG_BOUND

ESTIMATORS: dict[str, Callable[[Tensor], Tensor]] = {
    "k1": lambda d: d,
    "k2": lambda d: 0.5 * d * d,
    "k3": lambda d: torch.expm1(-d) + d,
}
"""The divergence of a token, as a function of d."""
LEVELS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "seq_sum": lambda values, mask: masked_sum(values, mask, -1),
    "seq_mean": lambda values, mask: masked_mean(values, mask, -1),
    "seq_max": lambda values, mask: pad(torch.where(mask.bool(), values, -torch.inf), (0, 1), value=-torch.inf).amax(-1),
}
"""One number a row out of those of its tokens."""


def reject(log_ratio: Tensor, mask: Tensor, criteria: Sequence[Criterion], rows: Tensor) -> tuple[Tensor, dict[str, Reading]]:
    """The mask of what is kept, and what is worth reporting, by the names of verl without their prefix.

    ``log_ratio`` [N, R]: log p_train - log p_rollout. ``rows`` [N] bool: the rows of ``seq_masked_fraction``. All other means
    over rows are over those with a trainable token. The kept mask has the dtype of ``mask``.
    """
    kept = mask.bool()
    readings: dict[str, Reading] = {}
    for criterion in criteria:
        values = _values(-log_ratio.clamp(-LOG_BOUND, LOG_BOUND), mask, criterion)
        passed = (values >= criterion.lower) & (values <= criterion.upper)
        readings |= {f"{criterion.name}_{name}": reading for name, reading in _readings(values, passed, mask, criterion).items()}
        kept = kept & passed
    lost = mask.bool() & ~kept
    readings |= {"masked_fraction": mean(lost, mask), "seq_masked_fraction": mean(lost.any(-1), rows)}
    return kept.to(mask.dtype), readings


def _values(d: Tensor, mask: Tensor, criterion: Criterion) -> Tensor:
    """What the criterion bounds, for each token: [N, R], 0 under the mask."""
    values = ESTIMATORS[criterion.estimator](d)
    if criterion.level != "token":
        values = LEVELS[criterion.level](values, mask).unsqueeze(-1).expand_as(d)
    return masked(values, mask)


def _readings(values: Tensor, passed: Tensor, mask: Tensor, criterion: Criterion) -> dict[str, Reading]:
    some = mask.bool().any(-1)
    row_means = masked_mean(values, mask, -1)
    high, low = values > criterion.upper, values < criterion.lower
    readings = {
        "mean": mean(values, mask),
        "max": largest(values, mask),
        "min": smallest(values, mask),
        "std": deviation(values.clamp(criterion.lower if criterion.estimator == "k1" else 0.0, criterion.upper), mask),
        "masked_fraction": mean(~passed, mask),
        "seq_masked_fraction": mean((mask.bool() & ~passed).any(-1), some),
        "seq_mean": mean(row_means, some),
        "seq_std": deviation(row_means, some, sample=True),
        "seq_max": largest(row_means, some),
        "seq_min": smallest(row_means, some),
        "seq_max_deviation": largest(row_means.abs(), some),
        "seq_fraction_high": mean(row_means > criterion.upper, some),
    }
    if criterion.estimator == "k1":
        readings["seq_fraction_low"] = mean(row_means < criterion.lower, some)
    if criterion.level != "token":  # one number a row, and a fraction of rows
        high, low, mask = row_means > criterion.upper, row_means < criterion.lower, some
    return readings | {"fraction_high": mean(high, mask), "fraction_low": mean(low, mask)}
