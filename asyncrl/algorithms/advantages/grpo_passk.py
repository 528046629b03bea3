"""GRPO for pass@k, https://arxiv.org/abs/2503.19595: only the best answer of a prompt group is rewarded."""

import torch
from torch import Tensor

from asyncrl.algorithms.advantages.estimator import AdvantageOptions, Needs, OutcomeEstimator, OutcomeRows
from asyncrl.algorithms.advantages.grouping import Grouping


def grpo_passk(rows: OutcomeRows, options: AdvantageOptions) -> Tensor:
    """``best - second best`` of the group at its best row, divided by ``deviation + epsilon``; 0 at all others: [N].

    A tie for the best gives 0 to all. Raises ValueError for a group of one: it has no second best.

    >>> rows = OutcomeRows(torch.tensor([1.0, 0.0, 0.5]), torch.tensor([5, 5, 5]), torch.tensor([4, 2, 9]))
    >>> GRPO_PASSK(rows, AdvantageOptions(normalise_by_std=False))
    tensor([0.5000, 0.0000, 0.0000])
    """
    group = Grouping.of(rows.groups)
    if bool(group.alone.any()):
        raise ValueError(f"grpo_passk compares the two best answers of a prompt, but {int(group.alone.sum())} prompts have only one")
    scores = rows.scores.double()
    number = torch.arange(len(scores), device=scores.device)
    is_best = scores == group.largest(scores)[group.index]
    best = group.smallest(torch.where(is_best, number, len(scores)))
    second = group.largest(torch.where(number == best[group.index], -torch.inf, scores))
    lead = scores[best] - second
    if options.normalise_by_std:
        lead = lead / (group.deviation(rows.scores) + options.epsilon)
    return torch.zeros_like(scores).index_copy(0, best, torch.where(group.zero_spread(rows.scores), 0.0, lead))


GRPO_PASSK = OutcomeEstimator(grpo_passk, Needs(groups=True))
