"""Rollout correction: importance weights for, and rejection of, what another policy than the trained one sampled.

The order of a step is: KL in the reward, this, advantages. Advantages use the mask after rejection; the statistics of a group
still use the scores of all its rows.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from asyncrl.algorithms.masked import masked
from asyncrl.algorithms.ranks import AllGather, alone
from asyncrl.algorithms.readings import Reading, read
from asyncrl.algorithms.rollout_correction.off_policy import PREFIX, off_policy_metrics
from asyncrl.algorithms.rollout_correction.options import RolloutCorrectionOptions
from asyncrl.algorithms.rollout_correction.rejection import reject
from asyncrl.algorithms.rollout_correction.weights import batch_factor, bounded_weights, log_weights, weight_readings
from asyncrl.metrics import Last, Metrics


@dataclass(frozen=True, slots=True)
class Correction:
    """What rollout correction gives the loss; tensors [N, R]."""

    rollout_is_weights: Tensor | None
    """0 under the mask *before* rejection: rejection does not change weights. None without ``rollout_is``."""
    response_mask: Tensor
    """After rejection. Keep the one before as ``loss_mask``."""
    metrics: Metrics
    """``rollout_corr/*``; the metrics of several parts join to those of the whole."""


@torch.no_grad()
def rollout_correction(
    old_log_probs: Tensor,
    rollout_log_probs: Tensor,
    response_mask: Tensor,
    options: RolloutCorrectionOptions,
    *,
    gather: AllGather = alone,
    count_empty_rows: bool = False,
) -> Correction:
    """Weights, rejection and metrics of the rows of this rank; all tensors [N, R].

    ``gather`` is called only for ``rollout_is_batch_normalize``, by every rank. ``count_empty_rows``, verl's reading: a row without a
    trainable token counts where rows are averaged, with weight 0. Nothing is reported for an empty mask.
    """
    log_ratio = masked(old_log_probs - rollout_log_probs, response_mask).double()
    some = response_mask.bool().any(-1)
    rows = torch.ones_like(some) if count_empty_rows else some
    weights, readings, metrics = _weights(log_ratio, response_mask, options, rows, gather)
    kept = response_mask
    if options.criteria:
        kept, rejected = reject(log_ratio, response_mask, options.criteria, rows)
        readings |= {f"{PREFIX}/rollout_rs_{name}": reading for name, reading in rejected.items()}
    if not bool(some.any()):
        return Correction(None if weights is None else weights.to(old_log_probs.dtype), kept, metrics)
    metrics |= read(readings)
    metrics |= off_policy_metrics(old_log_probs, rollout_log_probs, response_mask, count_empty_rows=count_empty_rows)
    return Correction(None if weights is None else weights.to(old_log_probs.dtype), kept, metrics)


def _weights(
    log_ratio: Tensor, mask: Tensor, options: RolloutCorrectionOptions, rows: Tensor, gather: AllGather
) -> tuple[Tensor | None, dict[str, Reading], Metrics]:
    level = options.rollout_is
    if level is None:
        return None, {}, {}
    log_weight = log_weights(log_ratio, mask, level)
    plain, weights = bounded_weights(log_weight, mask, options.bounds)
    readings = weight_readings(plain, weights, log_weight, mask, level, options.bounds, rows)
    metrics: Metrics = {}
    if options.rollout_is_batch_normalize:
        factor = batch_factor(weights, mask, level, gather)
        weights = weights / factor
        metrics[f"{PREFIX}/rollout_is_batch_norm_factor"] = Last(factor)
    return weights, {f"{PREFIX}/rollout_is_{name}": reading for name, reading in readings.items()}, metrics


def denominator_mask(response_mask: Tensor, loss_mask: Tensor, options: RolloutCorrectionOptions) -> Tensor:
    """The mask whose ones and rows the loss is divided by: after rejection, or with ``rejected_in_denominator`` before it.

    ``response_mask``: after rejection. ``loss_mask``: before. Both [N, R].
    """
    return loss_mask if options.rejected_in_denominator else response_mask
