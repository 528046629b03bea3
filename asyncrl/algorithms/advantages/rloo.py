"""RLOO, https://arxiv.org/abs/2402.14740: a score against the mean of the other answers to the prompt."""

import torch
from torch import Tensor

from asyncrl.algorithms.advantages.estimator import AdvantageOptions, Needs, OutcomeEstimator, OutcomeRows
from asyncrl.algorithms.advantages.grouping import Grouping


def rloo(rows: OutcomeRows, options: AdvantageOptions) -> Tensor:
    """``n / (n - 1) * (score - mean)``, which is the score minus the mean of the n - 1 others: [N].

    A group of one keeps its score.

    >>> rows = OutcomeRows(torch.tensor([1.0, 0.0, 0.0]), torch.tensor([5, 5, 5]), torch.tensor([4, 2, 9]))
    >>> RLOO(rows, AdvantageOptions())
    tensor([ 1.0000, -0.5000, -0.5000])
    """
    group = Grouping.of(rows.groups)
    return group.centred(rows.scores) * (group.counts / (group.counts - 1).clamp(min=1))[group.index]


def rloo_vectorized(rows: OutcomeRows, options: AdvantageOptions) -> Tensor:
    """``rloo``, but a group of one gets 0."""
    group = Grouping.of(rows.groups)
    return torch.where(group.alone[group.index], 0.0, rloo(rows, options))


RLOO = OutcomeEstimator(rloo, Needs(groups=True))
RLOO_VECTORIZED = OutcomeEstimator(rloo_vectorized, Needs(groups=True))
