"""Importance weights ``p_train / p_rollout``, per token or per row; truncated, or 0 outside a band.

Truncated: https://fengyao.notion.site/off-policy-rl. IcePop: https://ringtech.notion.site/icepop. All tensors [N, R].
"""

import math

import torch
from torch import Tensor

from asyncrl.algorithms.masked import first_of_row, masked, masked_mean, masked_sum
from asyncrl.algorithms.ranks import AllGather, total
from asyncrl.algorithms.readings import Reading, deviation, effective_size, largest, mean, smallest
from asyncrl.algorithms.rollout_correction.options import WeightBounds

LOG_BOUND = 20.0
"""A log weight, of a token or of a row, is bounded to +- this."""


def log_weights(log_ratio: Tensor, mask: Tensor, level: str) -> Tensor:
    """The log weight of each token: its own ``log_ratio``, or with ``sequence`` the sum over its row. 0 under the mask."""
    if level == "sequence":
        return masked(masked_sum(log_ratio, mask, -1).unsqueeze(-1).expand_as(log_ratio), mask)
    return masked(log_ratio, mask)


def bounded_weights(log_weight: Tensor, mask: Tensor, bounds: WeightBounds) -> tuple[Tensor, Tensor]:
    """The weights as they are and within their bounds, both 0 under the mask."""
    plain = masked(torch.exp(log_weight.clamp(-LOG_BOUND, LOG_BOUND)), mask)
    if bounds.zero_outside:
        return plain, torch.where((plain >= bounds.lower) & (plain <= bounds.upper), plain, 0.0)
    return plain, masked(plain.clamp(bounds.lower, bounds.upper), mask)


def batch_factor(weights: Tensor, mask: Tensor, level: str, gather: AllGather) -> float:
    """The mean weight of all tokens, or with ``sequence`` of all rows, over all ranks; 1 where that mean is 0."""
    if level == "sequence":
        sums = torch.stack([first_of_row(weights, mask).sum(), mask.bool().any(-1).sum()])
    else:
        sums = torch.stack([masked_sum(weights, mask), mask.bool().sum()])
    weight, count = total(sums, gather).tolist()
    return weight / count if weight > 1e-8 * count else 1.0


def weight_readings(
    plain: Tensor, bounded: Tensor, log_weight: Tensor, mask: Tensor, level: str, bounds: WeightBounds, rows: Tensor
) -> dict[str, Reading]:
    """What is worth reporting of the weights, before any batch normalisation, by the names of verl without their prefix.

    ``rows`` [N] bool: the rows that count where rows are averaged. ``max`` and ``min`` are of the bounded token weights, but
    of the row weights before their bounds with ``sequence``.
    """
    row_means = masked_mean(bounded, mask, -1)
    readings = {
        "mean": mean(bounded, mask),
        "std": deviation(bounded, mask),
        "eff_sample_size": effective_size(bounded, mask),
        "seq_mean": mean(row_means, rows),
        "seq_std": deviation(row_means, rows, sample=True),
        "seq_max": largest(row_means, rows),
        "seq_min": smallest(row_means, rows),
        "seq_max_deviation": largest((row_means - 1).abs(), rows),
        "seq_fraction_high": mean(masked_mean(plain, mask, -1) > bounds.upper, rows),
        "seq_fraction_low": mean(masked_mean(plain, mask, -1) < bounds.low_mark, rows),
    }
    if bounds.zero_outside:
        readings["oob_ratio"] = mean((plain < bounds.lower) | (plain > bounds.upper), mask)
    if level == "token":
        extremes, high, low, where = bounded, plain > bounds.upper, plain < bounds.low_mark, mask
    else:
        log_rows = first_of_row(log_weight, mask)
        extremes, where = torch.exp(log_rows.clamp(-LOG_BOUND, LOG_BOUND)), rows
        high, low = log_rows > math.log(bounds.upper), log_rows < math.log(bounds.low_mark)
    return readings | {
        "max": largest(extremes, where),
        "min": smallest(extremes, where),
        "ratio_fraction_high": mean(high, where),
        "ratio_fraction_low": mean(low, where),
    }
