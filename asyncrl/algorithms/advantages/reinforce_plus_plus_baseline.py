"""REINFORCE++ with baseline, https://arxiv.org/abs/2501.03262: group means off, then whitened over the whole batch."""

from torch import Tensor

from asyncrl.algorithms.advantages.estimator import AdvantageOptions, Needs, OutcomeEstimator, OutcomeRows
from asyncrl.algorithms.advantages.grouping import Grouping


def reinforce_plus_plus_baseline(rows: OutcomeRows, options: AdvantageOptions) -> Tensor:
    """``score - mean`` of the group, [N]; whitened over tokens afterwards. A group of one has the mean 0."""
    return Grouping.of(rows.groups).centred(rows.scores)


REINFORCE_PLUS_PLUS_BASELINE = OutcomeEstimator(reinforce_plus_plus_baseline, Needs(groups=True), whiten=True)
