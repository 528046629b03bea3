"""GDPO, https://arxiv.org/abs/2601.05242: each reward component is standardised by itself, then they are added."""

import torch
from torch import Tensor

from asyncrl.algorithms.advantages.estimator import AdvantageOptions, Needs, OutcomeEstimator, OutcomeRows
from asyncrl.algorithms.advantages.grouping import Grouping
from asyncrl.algorithms.advantages.grpo import standardised


def gdpo(rows: OutcomeRows, options: AdvantageOptions) -> Tensor:
    """``sum over components of weight * GRPO(component)``, [N]; whitened over tokens afterwards.

    Without named ``components`` the score is the only one. Raises ValueError for a component that the rows lack.
    """
    group = Grouping.of(rows.groups)
    if not options.components:
        return standardised(rows.scores, group, options)
    missing = [name for name, _ in options.components if name not in rows.components]
    if missing:
        raise ValueError(f"gdpo needs the reward components {', '.join(missing)}; rewards gave {', '.join(rows.components) or 'none'}")
    parts = [weight * standardised(rows.components[name], group, options) for name, weight in options.components]
    return torch.stack(parts).sum(0)


GDPO = OutcomeEstimator(gdpo, Needs(groups=True, reward_components=True), whiten=True)
