"""GPG, https://arxiv.org/abs/2504.02546: group means off, scaled up by the share of answers that earned nothing."""

import torch
from torch import Tensor

from asyncrl.algorithms.advantages.estimator import AdvantageOptions, Needs, OutcomeEstimator, OutcomeRows
from asyncrl.algorithms.advantages.grouping import Grouping


def gpg(rows: OutcomeRows, options: AdvantageOptions) -> Tensor:
    """``N / (number of scores that are not 0) * (score - mean)``, [N]; the factor is that of all rows passed.

    A group of one has the mean 0.

    >>> rows = OutcomeRows(torch.tensor([1.0, 0.0]), torch.tensor([5, 5]), torch.tensor([3, 1]))
    >>> GPG(rows, AdvantageOptions())
    tensor([ 1., -1.])
    """
    earned = torch.count_nonzero(rows.scores).clamp(min=1)
    return Grouping.of(rows.groups).centred(rows.scores) * (len(rows.scores) / earned)


GPG = OutcomeEstimator(gpg, Needs(groups=True))
