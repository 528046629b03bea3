"""GRPO, https://arxiv.org/abs/2402.03300: a score against the mean and the sample deviation of its prompt group."""

import torch
from torch import Tensor

from asyncrl.algorithms.advantages.grouping import Grouping


def grpo(scores: Tensor, groups: Tensor, *, normalise_by_std: bool = True, epsilon: float = 1e-6) -> Tensor:
    """``(score - mean) / (std + epsilon)`` within the group; ``score - mean`` without ``normalise_by_std`` (Dr. GRPO).

    ``scores``: [N] float. ``groups``: [N] int64, one number per prompt group. Returns [N] in the dtype of ``scores``.

    The deviation is the sample one (n - 1). A group of one has mean 0 and deviation 1, so that its score is its
    advantage; training never asks for it (see ``votes``). A group without spread gets exactly 0. The statistics are
    computed in float64, where equal float32 scores have an exact mean. Raises ValueError for a score that is NaN or
    infinite: it would silently spoil its whole group.

    >>> grpo(torch.tensor([1.0, 0.0, 0.0]), torch.tensor([5, 5, 5]))
    tensor([ 1.1547, -0.5773, -0.5773])
    """
    if not bool(torch.isfinite(scores).all()):
        bad = torch.nonzero(~torch.isfinite(scores)).flatten().tolist()
        raise ValueError(f"scores must be finite; rows {bad[:10]} are not")
    rows, group = scores.double(), Grouping.of(groups)
    alone = group.counts == 1
    mean = torch.where(alone, 0.0, group.mean(rows))
    advantages = rows - mean[group.index]
    if normalise_by_std:
        variance = group.total(advantages * advantages) / (group.counts - 1).clamp(min=1)
        deviation = torch.where(alone, 1.0, variance.sqrt())
        advantages = advantages / (deviation[group.index] + epsilon)
    flat = group.zero_spread(scores) & ~alone
    return torch.where(flat[group.index], 0.0, advantages).to(scores.dtype)
