"""GRPO, https://arxiv.org/abs/2402.03300: a score against the mean and the sample deviation of its prompt group.

Without the deviation it is Dr. GRPO, https://arxiv.org/abs/2503.20783.
"""

from torch import Tensor

from asyncrl.algorithms.advantages.estimator import AdvantageOptions, Needs, OutcomeEstimator, OutcomeRows
from asyncrl.algorithms.advantages.grouping import Grouping


def standardised(scores: Tensor, group: Grouping, options: AdvantageOptions) -> Tensor:
    """``(score - mean) / (deviation + epsilon)`` within the group: [N] -> [N] float64.

    ``score - mean`` without ``normalise_by_std``. A group of one has mean 0 and deviation 1, a group without spread
    gets exactly 0.
    """
    centred = group.centred(scores)
    if not options.normalise_by_std:
        return centred
    return centred / (group.deviation(scores)[group.index] + options.epsilon)


def grpo(rows: OutcomeRows, options: AdvantageOptions) -> Tensor:
    """``standardised`` scores, [N].

    >>> import torch
    >>> rows = OutcomeRows(torch.tensor([1.0, 0.0, 0.0]), torch.tensor([5, 5, 5]), torch.tensor([4, 2, 9]))
    >>> GRPO(rows, AdvantageOptions())
    tensor([ 1.1547, -0.5773, -0.5773])
    """
    return standardised(rows.scores, Grouping.of(rows.groups), options)


GRPO = OutcomeEstimator(grpo, Needs(groups=True))
