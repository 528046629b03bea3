"""How far the rollout engine and the trainer are apart on the tokens that were sampled."""

import math

import torch
from torch import Tensor

from asyncrl.algorithms.masked import masked
from asyncrl.metrics import Last, Max, Mean, Metric, Metrics

PREFIX = "training/rollout_probs_diff"
CORRELATION = "training/rollout_actor_probs_pearson_corr"
_MOMENTS = "training/rollout_probs_moments"


@torch.no_grad()
def probability_difference(rollout_log_probs: Tensor, old_log_probs: Tensor, mask: Tensor) -> Metrics:
    """The absolute difference of the probabilities of the sampled tokens; all tensors [N, R].

    ``..._valid`` (1 if there was a token), ``..._max`` and ``..._mean`` merge as they are. A deviation and a correlation
    do not merge, their moments do: they travel as means under ``training/rollout_probs_moments/*`` until
    ``finish_probability_difference`` turns the merged metrics of all parts into ``..._std`` and the correlation.
    """
    tokens = float(mask.bool().sum())
    if not tokens:
        return {f"{PREFIX}_valid": Max(0.0)}
    rollout = torch.exp(masked(rollout_log_probs, mask).double())
    actor = torch.exp(masked(old_log_probs, mask).double())
    difference = (rollout - actor).abs()
    averaged = {
        f"{PREFIX}_mean": difference,
        f"{_MOMENTS}/difference_squared": difference.square(),
        f"{_MOMENTS}/rollout": rollout,
        f"{_MOMENTS}/actor": actor,
        f"{_MOMENTS}/rollout_squared": rollout.square(),
        f"{_MOMENTS}/actor_squared": actor.square(),
        f"{_MOMENTS}/product": rollout * actor,
    }
    totals = [masked(value, mask).sum() for value in averaged.values()]
    *sums, largest = torch.stack([*totals, masked(difference, mask).max()]).tolist()
    metrics: Metrics = {f"{PREFIX}_valid": Max(1.0), f"{PREFIX}_max": Max(largest)}
    return metrics | {name: Mean(total, tokens) for name, total in zip(averaged, sums, strict=True)}


def finish_probability_difference(metrics: Metrics) -> Metrics:
    """Replace the merged moments by ``training/rollout_probs_diff_std`` (sample deviation) and Pearson's correlation.

    Returns ``metrics`` unchanged when there are no moments. A number that does not exist is left out: the deviation of one
    token, the correlation with a constant.
    """
    moments = {name.removeprefix(f"{_MOMENTS}/"): metric for name, metric in metrics.items() if name.startswith(_MOMENTS)}
    if not moments:
        return dict(metrics)
    finished = {name: metric for name, metric in metrics.items() if not name.startswith(_MOMENTS)}
    mean = {name: metric.value() for name, metric in moments.items()}
    tokens = _weight(moments["rollout"])
    variance = max(0.0, mean["difference_squared"] - metrics[f"{PREFIX}_mean"].value() ** 2)
    if tokens > 1:
        finished[f"{PREFIX}_std"] = Last(math.sqrt(variance * tokens / (tokens - 1)))
    spread = (mean["rollout_squared"] - mean["rollout"] ** 2) * (mean["actor_squared"] - mean["actor"] ** 2)
    # Below this the difference of the two moments is rounding noise and their ratio means nothing.
    if spread > 1e-24 * mean["rollout_squared"] * mean["actor_squared"]:
        finished[CORRELATION] = Last((mean["product"] - mean["rollout"] * mean["actor"]) / math.sqrt(spread))
    return finished


def _weight(metric: Metric) -> float:
    assert isinstance(metric, Mean)
    return metric.weight
