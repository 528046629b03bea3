"""What a step says about its rows, by verl's names. Rows that fill up a batch are never passed, so they count nowhere.

Numbers of whole rows are plain sequences, one number a row, where the controller has them; a number that nothing backs is
NaN. Numbers of tokens are metrics that join over ranks.
"""

import math
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from asyncrl.algorithms.masked import masked, masked_mean, masked_sum, moments
from asyncrl.algorithms.readings import Reading, largest, mean, read, smallest
from asyncrl.metrics import Deviation, ExplainedVariance, Last, Mean, Metrics, spread

PER_TOKEN = ("ref", "values", "adv", "update_critic", "update_actor")
"""Stages whose time is divided by all tokens; that of ``gen`` by response tokens alone."""
VARIANCE = "variance_proxy"


def reward_metrics(scores: Sequence[float], rewards: Sequence[float], response_lengths: Sequence[int]) -> dict[str, float]:
    """``critic/score`` as the rules gave it and ``critic/rewards`` as trained: mean, max, min over rows that are not empty."""
    came = [length > 0 for length in response_lengths]
    of = {"critic/score": scores, "critic/rewards": rewards}
    return _spreads({name: [value for value, real in zip(values, came, strict=True) if real] for name, values in of.items()})


def length_metrics(
    prompt_lengths: Sequence[int], response_lengths: Sequence[int], prompt_limit: int, response_limit: int
) -> dict[str, float]:
    """Lengths in tokens, the share of rows as long as the configured limit, and the share of empty, aborted answers."""
    written = [length for length in response_lengths if length > 0]
    limits = {"prompt_length": prompt_limit, "response_length": response_limit, "response_length_non_aborted": response_limit}
    lengths = {"prompt_length": prompt_lengths, "response_length": response_lengths, "response_length_non_aborted": written}
    clipped = {f"{name}/clip_ratio": share([length >= limits[name] for length in values]) for name, values in lengths.items()}
    return _spreads(lengths) | clipped | {"response/aborted_ratio": share([length == 0 for length in response_lengths])}


def turn_metrics(turns: Sequence[int]) -> dict[str, float]:
    """Turns of each session: ``num_turns`` and ``training/num_turns``."""
    return _spreads({"num_turns": turns, "training/num_turns": turns})


def version_metrics(oldest: Sequence[int], newest: Sequence[int], step: int) -> dict[str, float]:
    """How old the rows of step ``step`` are: [N] the oldest and the newest policy version of each row's sampled tokens.

    A row that the versions 2 to 4 sampled spans 3; at step 6, whose policy starts at version 5, its staleness is 1, its
    worst 3. Nothing for no row.
    """
    before, name = step - 1, "training/off_policy/trajectory"
    return {
        **spread(f"{name}_spans", [last - first + 1 for first, last in zip(oldest, newest, strict=True)]),
        **spread(f"{name}_staleness", [before - last for last in newest]),
        **spread(f"{name}_staleness_worst", [before - first for first in oldest]),
    }


def throughput_metrics(tokens: int, seconds: float, devices: int) -> dict[str, float]:
    """Tokens of prompts and responses, seconds of the step, and tokens per second and device."""
    return {
        "perf/total_num_tokens": tokens,
        "perf/time_per_step": seconds,
        "perf/throughput": tokens / (seconds * devices) if seconds > 0 else math.nan,
    }


def timing_metrics(seconds: Mapping[str, float], tokens: int, response_tokens: int) -> dict[str, float]:
    """``timing_s/<stage>``, and milliseconds per token of the stages that work on tokens."""
    counts = {"gen": response_tokens} | dict.fromkeys(PER_TOKEN, tokens)
    per_token = {
        f"timing_per_token_ms/{stage}": spent * 1000.0 / counts[stage] for stage, spent in seconds.items() if counts.get(stage, 0) > 0
    }
    return {f"timing_s/{stage}": spent for stage, spent in seconds.items()} | per_token


def token_metrics(name: str, values: Tensor, mask: Tensor) -> Metrics:
    """``<name>/mean``, ``/max`` and ``/min`` over trainable tokens; ``values`` and ``mask`` of one shape."""
    values, mask = _at_least_one(values, mask)
    return read({f"{name}/mean": mean(values, mask), f"{name}/max": largest(values, mask), f"{name}/min": smallest(values, mask)})


def value_metrics(values: Tensor, returns: Tensor, mask: Tensor) -> Metrics:
    """``critic/values`` and ``critic/vf_explained_var``, 1 for a critic that foresees every return; tensors of one shape."""
    residual = masked(returns, mask) - masked(values, mask)
    numbers = (*moments(returns, mask).unbind(), *moments(residual, mask).unbind())
    return token_metrics("critic/values", values, mask) | read({"critic/vf_explained_var": Reading(_explained, numbers)})


def variance_proxies(
    advantages: Tensor, old_log_probs: Tensor, sum_pi_squared: Tensor, mask: Tensor, rollout_is_weights: Tensor | None = None
) -> Metrics:
    """Means over rows behind the variance of the policy gradient, https://arxiv.org/abs/2602.07078; tensors [N, R].

    With ``W`` the sum over a row of ``1 - 2 p + sum(pi^2)`` and ``A`` its mean advantage: ``expected_a_squared`` of A^2,
    ``expected_w`` of W with each token times its squared importance weight, and ``proxy2_total_power`` of A^2 W, times the
    squared mean importance weight; there a token of weight 0 has no W.
    """
    energy = masked(1.0 - 2.0 * masked(old_log_probs, mask).exp() + masked(sum_pi_squared, mask), mask)
    weights = torch.ones_like(energy) if rollout_is_weights is None else masked(rollout_is_weights, mask)
    squared = masked_mean(advantages, mask, -1).square()
    power = squared * masked_sum(energy, mask * (weights != 0), -1).clamp(min=0) * masked_mean(weights, mask, -1).square()
    rows = torch.ones_like(squared)
    return read(
        {
            f"{VARIANCE}/expected_a_squared": mean(squared, rows),
            f"{VARIANCE}/expected_w": mean((energy * weights.square()).sum(-1), rows),
            f"{VARIANCE}/proxy2_total_power": mean(power, rows),
        }
    )


def variance_with_gradient(proxies: Metrics, gradient_norm: float | None) -> Metrics:
    """The joined ``proxies`` and what the norm of the mean gradient adds; both 0 without a norm.

    ``proxy1_signal_strength`` is its square, ``proxy3_pure_noise`` = (proxy2 - proxy1) / (rows - 1), the variance of the mean.
    """
    power = proxies[f"{VARIANCE}/proxy2_total_power"]
    assert isinstance(power, Mean)
    signal = 0.0 if gradient_norm is None else gradient_norm**2
    noise = max(0.0, power.value() - signal) / (power.weight - 1) if gradient_norm is not None and power.weight > 1 else 0.0
    return {**proxies, f"{VARIANCE}/proxy1_signal_strength": Last(signal), f"{VARIANCE}/proxy3_pure_noise": Last(noise)}


def share(answers: Sequence[bool]) -> float:
    """The fraction that is true; NaN of nothing."""
    return sum(answers) / len(answers) if answers else math.nan


def _spreads(of: Mapping[str, Sequence[float]]) -> dict[str, float]:
    found: dict[str, float] = {}
    for name, values in of.items():
        found |= spread(name, values) or {f"{name}/{kind}": math.nan for kind in ("mean", "max", "min")}
    return found


def _explained(rows: float, mean_return: float, returns: float, _: float, mean_residual: float, residuals: float) -> ExplainedVariance:
    return ExplainedVariance(Deviation(rows, mean_return, returns, 1.0), Deviation(rows, mean_residual, residuals, 1.0))


def _at_least_one(values: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    """Something to take the maximum of, under a 0 of the mask, where there is no element at all."""
    return (values, mask) if values.numel() else (values.new_zeros(1), mask.new_zeros(1))
