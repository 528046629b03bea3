"""What clip_cov and kl_cov share: tokens chosen by the covariance of their log-prob with their advantage.

The entropy mechanism of https://arxiv.org/abs/2505.22617. Means, quota and choice are those of the **whole mini-batch over
all ranks**: verl takes them of the micro-batch at hand, so that its result depends on the cut. That needs the log-probs of
the whole mini-batch before the first gradient, hence a first phase (``PolicyLossKind.prepare``).
"""

import torch
from torch import Tensor

from asyncrl.algorithms.losses.policy_loss import PolicyRows
from asyncrl.algorithms.masked import masked_sum
from asyncrl.algorithms.ranks import AllGather, total


def covariances(rows: PolicyRows, gather: AllGather) -> tuple[Tensor, int]:
    """``(A - mean A) (log_prob - mean log_prob)`` of each token [N, R] float64, and the trainable tokens of all ranks."""
    mask, values = rows.response_mask, (rows.advantages.detach().double(), rows.log_probs.detach().double())
    sums = torch.stack([masked_sum(value, mask) for value in values] + [mask.bool().sum().double()])
    *totals, tokens = total(sums, gather).tolist()
    advantages, log_probs = (rows.clean(value) - part / max(tokens, 1) for value, part in zip(values, totals, strict=True))
    return advantages * log_probs, int(tokens)


def quota(ratio: float, tokens: int) -> int:
    """How many tokens are chosen: at least one."""
    return max(1, int(ratio * tokens))


def largest_tokens(scores: Tensor, draws: Tensor, eligible: Tensor, count: int, gather: AllGather) -> Tensor:
    """The ``count`` eligible tokens of all ranks with the largest scores, ties to the smaller draw: [N, R] bool.

    ``scores`` [N, R] float64, ``draws`` [N, R] int64, ``eligible`` [N, R] bool. Fewer where fewer are eligible.
    """
    order = _sortable(scores)
    mine = _sorted(torch.stack([order[eligible], draws[eligible]], -1))[:count]
    chosen = _sorted(gather(mine))[:count]
    if not len(chosen):
        return torch.zeros_like(eligible)
    score, draw = chosen[-1].unbind()
    return eligible & ((order > score) | ((order == score) & (draws <= draw)))


def _sortable(scores: Tensor) -> Tensor:
    """Integers in the order of the numbers: ranks exchange scores and draws in one integer tensor."""
    bits = (scores + 0.0).contiguous().view(torch.int64)  # + 0.0: minus zero becomes zero
    return bits ^ ((bits >> 63) & torch.iinfo(torch.int64).max)


def _sorted(pairs: Tensor) -> Tensor:
    """[n, 2], larger scores first, among equals smaller draws first."""
    by_draw = pairs[torch.sort(pairs[:, 1], stable=True).indices]
    return by_draw[torch.sort(by_draw[:, 0], descending=True, stable=True).indices]
