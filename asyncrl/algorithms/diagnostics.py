"""How far the rollout engine and the trainer are apart on the tokens that were sampled."""

import torch
from torch import Tensor

from asyncrl.algorithms.masked import masked
from asyncrl.algorithms.readings import Reading, deviation, largest, mean, read
from asyncrl.metrics import Correlation, Max, Metric, Metrics

PREFIX = "training/rollout_probs_diff"
CORRELATION = "training/rollout_actor_probs_pearson_corr"


@torch.no_grad()
def probability_difference(rollout_log_probs: Tensor, old_log_probs: Tensor, mask: Tensor) -> Metrics:
    """The absolute difference of the probabilities of the sampled tokens; all tensors [N, R].

    ``..._valid`` (1 if there was a token), ``..._max``, ``..._mean``, ``..._std`` (sample deviation) and the correlation of
    the two probabilities. The metrics of several parts join to those of the whole. A part without a token has ``..._valid``
    alone.
    """
    if not bool(mask.any()):
        return {f"{PREFIX}_valid": Max(0.0)}
    rollout, actor = (torch.exp(masked(values, mask).double()) for values in (rollout_log_probs, old_log_probs))
    difference = (rollout - actor).abs()
    readings = {
        f"{PREFIX}_max": largest(difference, mask),
        f"{PREFIX}_mean": mean(difference, mask),
        f"{PREFIX}_std": deviation(difference, mask, sample=True),
        CORRELATION: _correlation(rollout, actor, mask),
    }
    return {f"{PREFIX}_valid": Max(1.0)} | read(readings)


def _correlation(left: Tensor, right: Tensor, mask: Tensor) -> Reading:
    count = mask.bool().sum()
    means = [masked(values, mask).sum() / count for values in (left, right)]
    apart = [masked(values - average, mask) for values, average in zip((left, right), means, strict=True)]
    squares = [values.square().sum() for values in apart]
    return Reading(_make_correlation, (count, *means, *squares, (apart[0] * apart[1]).sum()))


def _make_correlation(weight: float, *numbers: float) -> Metric:
    left, right, left_squares, right_squares, products = numbers
    return Correlation(weight, (left, right), (left_squares, right_squares), products)
