"""ReMax, https://arxiv.org/abs/2310.10505: the return against the score of the greedy answer to the same prompt."""

import torch
from torch import Tensor

from asyncrl.algorithms.advantages.estimator import AdvantageOptions, Needs, Partial, TokenEstimator, TokenRows, given
from asyncrl.algorithms.advantages.scan import return_to_go
from asyncrl.algorithms.masked import masked


def begin(rows: TokenRows, options: AdvantageOptions) -> Partial:
    """``G_t - greedy score``, with the undiscounted sum of rewards from t on. Nothing depends on other rows."""
    returns = masked(return_to_go(masked(rows.rewards, rows.mask), rows.mask, 1.0), rows.mask)
    advantages = masked(returns - given("baselines", rows.baselines).unsqueeze(-1), rows.mask)
    return Partial(advantages, returns, torch.zeros(0, dtype=torch.float64, device=returns.device))


def merge(summaries: Tensor) -> Tensor:
    """There is nothing to merge."""
    return summaries[0]


def finish(rows: TokenRows, partial: Partial, merged: Tensor, options: AdvantageOptions) -> Tensor:
    """The advantages as they are."""
    return partial.advantages


REMAX = TokenEstimator(begin, merge, finish, Needs(tokens=True, greedy_baseline=True))
