"""The optimal token baseline, https://arxiv.org/abs/2602.07078: a baseline of least variance for each place in the answer.

The gradient of a token's log-prob with respect to the logits has the squared norm ``1 - 2 p + sum(pi^2)``; summed from
the start it is the weight of an answer at that place.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from asyncrl.algorithms.advantages.estimator import AdvantageOptions, Needs, Partial, TokenEstimator, TokenRows, given
from asyncrl.algorithms.advantages.scan import return_to_go
from asyncrl.algorithms.masked import masked

EPSILON = 1e-8
"""Added to the sum of weights."""


@dataclass(frozen=True, slots=True)
class Places:
    """Where tokens stand, as the baseline counts: [N, R] place of each trainable token, [N] places that a row reaches."""

    place: Tensor
    reach: Tensor


def columns(mask: Tensor) -> Places:
    """A place is a column of the response, tool tokens included; a row reaches to its last trainable token."""
    number = torch.arange(mask.shape[-1], device=mask.device).expand(mask.shape)
    reach = torch.where(mask.bool(), number + 1, 0).amax(-1) if mask.shape[-1] else number.sum(-1)
    return Places(number, reach)


def path_weights(rows: TokenRows) -> Tensor:
    """``W_t``: the running sum of ``(1 - 2 p + sum(pi^2)) * w^2`` over trainable tokens, 0 under the mask: [N, R]."""
    probs = masked(given("old_log_probs", rows.old_log_probs), rows.mask).exp()
    energy = 1.0 - 2.0 * probs + masked(given("sum_pi_squared", rows.sum_pi_squared), rows.mask)
    if rows.rollout_is_weights is not None:
        energy = energy * masked(rows.rollout_is_weights, rows.mask).square()
    return masked(masked(energy, rows.mask).cumsum(-1), rows.mask)


def summarise(rows: TokenRows, places: Places) -> Partial:
    """What this rank's voting rows add to the baselines of the G groups: [3, G, R + 1] float64.

    Plane 0 and 1, from column 1 on: sums of ``G_t * W_t`` and ``W_t`` by place. Plane 2: how many rows reach that far.
    Sums of ranks add up; all ranks must have padded to one R. The returns stand on tool tokens, too.
    """
    groups = given("groups", rows.groups)
    count = rows.group_count if rows.group_count is not None else int(groups.max()) + 1 if len(groups) else 0
    width = rows.mask.shape[-1] + 1
    votes = torch.ones_like(groups, dtype=torch.bool) if rows.votes is None else rows.votes.bool()
    returns = return_to_go(masked(rows.rewards, rows.mask), rows.mask, 1.0)
    # A token under the mask and a row without a vote have the weight 0, so that their cell does not matter.
    weights = masked(path_weights(rows), votes.unsqueeze(-1)).double()
    cells = (groups.unsqueeze(-1) * width + places.place + 1).flatten()
    planes = torch.zeros(3, count * width, dtype=torch.float64, device=returns.device)
    planes[0].index_add_(0, cells, (returns.double() * weights).flatten())
    planes[1].index_add_(0, cells, weights.flatten())
    planes[2].index_add_(0, (groups * width + places.reach)[votes], torch.ones_like(groups, dtype=torch.float64)[votes])
    planes = planes.view(3, count, width)
    planes[2] = planes[2].flip(-1).cumsum(-1).flip(-1)
    return Partial(returns, returns, planes)


def begin(rows: TokenRows, options: AdvantageOptions) -> Partial:
    """Returns and sums by column."""
    return summarise(rows, columns(rows.mask))


def merge(summaries: Tensor) -> Tensor:
    """The sums of all ranks."""
    return summaries.sum(0)


def measured(rows: TokenRows, partial: Partial, sums: Tensor, places: Places, options: AdvantageOptions) -> Tensor:
    """``G_t - sum(G W) / (sum(W) + 1e-8)`` over the group at that place, [N, R].

    No baseline in a group of one and, with ``handle_zero_tail``, where only one row reaches. A group of no vote gets 0.
    """
    weighted, weights, reaching = sums.unbind(0)
    baseline = weighted / (weights + EPSILON)
    alone = reaching[:, :1] == 1
    unmatched = alone | (reaching == 1) if options.handle_zero_tail else alone.expand_as(reaching)
    baseline = torch.where(unmatched, 0.0, baseline)
    groups = given("groups", rows.groups)
    mine = baseline[groups].gather(-1, places.place + 1)
    heard = (reaching[:, 0] > 0)[groups].unsqueeze(-1) & rows.mask.bool()
    return masked(partial.advantages.double() - mine, heard).to(partial.advantages.dtype)


def finish(rows: TokenRows, partial: Partial, sums: Tensor, options: AdvantageOptions) -> Tensor:
    """Returns against the baselines by column."""
    return measured(rows, partial, sums, columns(rows.mask), options)


NEEDS = Needs(tokens=True, groups=True, old_log_probs=True, sum_pi_squared=True)
OPTIMAL_TOKEN_BASELINE = TokenEstimator(begin, merge, finish, NEEDS)
