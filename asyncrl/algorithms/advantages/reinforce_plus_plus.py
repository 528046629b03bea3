"""REINFORCE++, https://arxiv.org/abs/2501.03262: the discounted return from each token on, whitened over the batch."""

from asyncrl.algorithms.advantages.estimator import AdvantageOptions, Needs, Partial, TokenEstimator, TokenRows, whiten_tokens
from asyncrl.algorithms.advantages.scan import return_to_go
from asyncrl.algorithms.masked import masked, merged_moments, moments


def begin(rows: TokenRows, options: AdvantageOptions) -> Partial:
    """``G_t = r_t + gamma * G_next``; tool tokens are passed over: they neither discount nor add."""
    returns = masked(return_to_go(masked(rows.rewards, rows.mask), rows.mask, options.gamma), rows.mask)
    return Partial(returns, returns, moments(returns, rows.mask))


REINFORCE_PLUS_PLUS = TokenEstimator(begin, merged_moments, whiten_tokens, Needs(tokens=True))
