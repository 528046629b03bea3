"""Advantages as TRL defines them, where several reward functions may each leave out an answer.

``rewards``: [N, K] float, one column a reward function, NaN where it gave nothing. ``groups``: [N] int64, any numbers. An
answer that no function judged gets 0, and so does one whose group holds no other judged answer.

``scale="group"`` is ``grpo`` with another epsilon, ``"none"`` is ``grpo`` without ``normalise_by_std``; ``"batch"`` divides
by one deviation over all answers, https://arxiv.org/abs/2508.08221. ``normalize_then_sum`` is GDPO with answers in place of
tokens.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from asyncrl.algorithms.advantages.grouping import Grouping

EPSILON = 1e-4
"""Added to a deviation."""
SCALES = ("group", "batch", "none")
AGGREGATIONS = ("sum_then_normalize", "normalize_then_sum")


@dataclass(frozen=True, slots=True)
class ScaledAdvantages:
    """One number an answer."""

    advantages: Tensor
    """[N]."""
    deviation: Tensor
    """[N]: what the advantage was divided by, epsilon apart; with ``none`` the deviation of the group."""
    zero_spread: Tensor
    """[N] bool: that deviation is 0 but for rounding."""


def scaled_advantages(
    rewards: Tensor, weights: Tensor, groups: Tensor, *, scale: str = "group", aggregation: str = "sum_then_normalize"
) -> ScaledAdvantages:
    """Weighted rewards against their group; ``weights``: [K].

    ``sum_then_normalize`` compares the weighted sums. ``normalize_then_sum`` compares each reward function by itself, adds
    up, and then takes mean and deviation over all answers. Raises ValueError for an unknown word.
    """
    for name, word, known in (("scale", scale, SCALES), ("aggregation", aggregation, AGGREGATIONS)):
        if word not in known:
            raise ValueError(f"unknown {name} {word!r}; known: {', '.join(known)}")
    group, batch = Grouping.of(groups), Grouping.of(torch.zeros_like(groups))
    wide, factors = rewards.double(), weights.double()
    if aggregation == "normalize_then_sum":
        columns = [_centred(column, group) / (_deviation(column, group) + EPSILON) for column in wide.unbind(-1)]
        summed = (torch.stack(columns, -1) * factors).nansum(-1)
        centred, deviation = _centred(summed, batch), _deviation(summed, batch)
    else:
        summed = torch.where(wide.isnan().all(-1), torch.nan, (wide * factors).nansum(-1))
        centred, deviation = _centred(summed, group), _deviation(summed, batch if scale == "batch" else group)
    divided = centred if scale == "none" and aggregation == "sum_then_normalize" else centred / (deviation + EPSILON)
    zero = deviation.isclose(torch.zeros_like(deviation))
    return ScaledAdvantages(divided.nan_to_num().to(rewards.dtype), deviation.to(rewards.dtype), zero)


def leave_one_out(rewards: Tensor, groups: Tensor, *, normalize: bool = False) -> Tensor:
    """RLOO: a reward [N] against the mean of the other judged answers of its group; ``normalize`` whitens over all: [N]."""
    group, batch = Grouping.of(groups), Grouping.of(torch.zeros_like(groups))
    wide = rewards.double()
    total, count = group.total(wide.nan_to_num())[group.index], _judged(wide, group)[group.index]
    advantages = wide - (total - wide) / (count - 1)
    if normalize:
        advantages = _centred(advantages, batch) / (_deviation(advantages, batch) + EPSILON)
    return advantages.nan_to_num().to(rewards.dtype)


def _judged(values: Tensor, group: Grouping) -> Tensor:
    return group.total((~values.isnan()).to(values.dtype))


def _centred(values: Tensor, group: Grouping) -> Tensor:
    return values - (group.total(values.nan_to_num()) / _judged(values, group))[group.index]


def _deviation(values: Tensor, group: Grouping) -> Tensor:
    """Sample deviation of the judged answers, [N]: 0 in a group of one row, NaN where only one of several was judged."""
    squares = group.total(_centred(values, group).square().nan_to_num())
    counts = _judged(values, group)
    deviation = torch.where(counts > 0, (squares / (counts - 1)).sqrt(), torch.nan)
    return torch.where(group.alone, 0.0, deviation)[group.index]
