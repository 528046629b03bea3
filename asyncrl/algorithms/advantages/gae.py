"""GAE, https://arxiv.org/abs/1506.02438: a critic's values against what came, whitened over the batch."""

from asyncrl.algorithms.advantages.estimator import AdvantageOptions, Needs, Partial, TokenEstimator, TokenRows, given, whiten_tokens
from asyncrl.algorithms.advantages.scan import carried_back, discounts, later, reverse_scan
from asyncrl.algorithms.masked import masked, merged_moments, moments


def begin(rows: TokenRows, options: AdvantageOptions) -> Partial:
    """``A_t = delta_t + gamma * lam * A_next``, ``delta_t = r_t + gamma * V_next - V_t``; next is the next trainable token.

    Tool tokens are passed over: they neither discount nor add. ``returns = A + V``.
    """
    values = masked(given("values", rows.values), rows.mask)
    rewards = masked(rows.rewards, rows.mask)
    following = later(carried_back(values, rows.mask))
    deltas = masked(rewards + options.gamma * following - values, rows.mask)
    decay = discounts(deltas, rows.mask, options.gamma * options.lam)
    advantages = masked(reverse_scan(deltas, decay), rows.mask)
    return Partial(advantages, advantages + values, moments(advantages, rows.mask))


GAE = TokenEstimator(begin, merged_moments, whiten_tokens, Needs(tokens=True, values=True))
