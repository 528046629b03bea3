"""OPO, https://arxiv.org/abs/2505.23585: the baseline of least variance when long answers have long gradients."""

from torch import Tensor

from asyncrl.algorithms.advantages.estimator import AdvantageOptions, Needs, OutcomeEstimator, OutcomeRows
from asyncrl.algorithms.advantages.grouping import Grouping


def opo(rows: OutcomeRows, options: AdvantageOptions) -> Tensor:
    """``score - sum(length * score) / sum(length)`` within the group, [N]; lengths are trainable tokens.

    A group of one has the baseline 0; a group without a trainable token takes the plain mean.

    >>> import torch
    >>> rows = OutcomeRows(torch.tensor([1.0, 0.0]), torch.tensor([5, 5]), torch.tensor([3, 1]))
    >>> OPO(rows, AdvantageOptions())
    tensor([ 0.2500, -0.7500])
    """
    return Grouping.of(rows.groups).centred(rows.scores, weights=rows.lengths)


OPO = OutcomeEstimator(opo, Needs(groups=True))
