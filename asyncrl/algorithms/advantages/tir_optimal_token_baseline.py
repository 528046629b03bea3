"""The optimal token baseline for answers with tools: a place is the number of sampled tokens before it, tool tokens apart."""

from torch import Tensor

from asyncrl.algorithms.advantages.estimator import AdvantageOptions, Partial, TokenEstimator, TokenRows
from asyncrl.algorithms.advantages.optimal_token_baseline import NEEDS, Places, measured, merge, summarise


def sampled_tokens(mask: Tensor) -> Places:
    """A place counts trainable tokens; a row reaches as many."""
    numbers = mask.bool().long()
    return Places((numbers.cumsum(-1) - 1).clamp(min=0), numbers.sum(-1))


def begin(rows: TokenRows, options: AdvantageOptions) -> Partial:
    """Returns and sums by sampled token."""
    return summarise(rows, sampled_tokens(rows.mask))


def finish(rows: TokenRows, partial: Partial, sums: Tensor, options: AdvantageOptions) -> Tensor:
    """Returns against the baselines by sampled token."""
    return measured(rows, partial, sums, sampled_tokens(rows.mask), options)


TIR_OPTIMAL_TOKEN_BASELINE = TokenEstimator(begin, merge, finish, NEEDS)
