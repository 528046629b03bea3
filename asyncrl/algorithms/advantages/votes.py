"""Who votes in a group: the last output of each session, once, or every output.

A session whose context was reset leaves several outputs. Were each of them a row of its own, a session with three outputs
would weigh three times in its group's mean.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from asyncrl.algorithms.advantages.estimator import AdvantageOptions, OutcomeEstimator, OutcomeRows, given
from asyncrl.algorithms.advantages.grouping import Grouping

Votes = Literal["last", "all"]


@dataclass(frozen=True, slots=True)
class Ballot:
    """The rows that speak for their sessions."""

    voters: Tensor
    """[S] int64: the row that votes, per session."""
    session: Tensor
    """[N] int64: the session of each row, 0..S-1."""

    @classmethod
    def last(cls, groups: Tensor, sessions: Tensor, indices: Tensor) -> "Ballot":
        """The row with the highest index of each session; the first of them where an index occurs twice.

        groups, sessions, indices: [N] int64: prompt group, session within the group, output within the session.
        """
        within = Grouping.of(sessions)
        session = Grouping.of(Grouping.of(groups).index * len(within.counts) + within.index)
        is_last = indices == session.largest(indices)[session.index]
        rows = torch.arange(len(groups), device=groups.device)
        return cls(session.smallest(torch.where(is_last, rows, len(rows))), session.index)

    @classmethod
    def every(cls, groups: Tensor) -> "Ballot":
        """Every row speaks for itself."""
        rows = torch.arange(len(groups), device=groups.device)
        return cls(rows, rows)


def multi_output(
    estimator: OutcomeEstimator, votes: Votes = "last", *, minimum_votes: int = 2, void_masked: bool = False
) -> Callable[[OutcomeRows, AdvantageOptions], Tensor]:
    """The estimator over sessions of several outputs: ``(rows, options) -> [N]``, in the dtype of the scores.

    With ``last`` only the last output of a session votes, and its advantage goes to all rows of the session; ``all`` lets
    every row vote. A prompt group with fewer than ``minimum_votes`` votes never reaches an estimator that compares groups
    and gets 0: a single vote has nothing to be compared with. Whitening sees all rows.

    ``void_masked``, verl's reading of a last output without a trainable token: it votes, but its session gets 0.

    >>> from asyncrl.algorithms.advantages.grpo import GRPO
    >>> scores, sessions, indices = torch.tensor([9.0, 1.0, 0.0]), torch.tensor([0, 0, 1]), torch.tensor([0, 1, 0])
    >>> rows = OutcomeRows(scores, torch.tensor([4, 4, 4]), torch.tensor([7, 7, 7]), sessions, indices)
    >>> multi_output(GRPO)(rows, AdvantageOptions())
    tensor([ 0.7071,  0.7071, -0.7071])
    """

    def estimate(rows: OutcomeRows, options: AdvantageOptions) -> Tensor:
        ballot = _ballot(rows, votes)
        group = Grouping.of(rows.groups[ballot.voters])
        heard = (group.counts >= (minimum_votes if estimator.needs.groups else 1))[group.index]
        advantages = torch.zeros(len(ballot.voters), dtype=torch.float64, device=rows.scores.device)
        if bool(heard.any()):
            advantages[heard] = estimator.compare(rows.take(ballot.voters[heard]), options).double()
        if void_masked:
            advantages = torch.where(rows.lengths[ballot.voters] > 0, advantages, 0.0)
        return estimator.finish(advantages[ballot.session], rows.lengths).to(rows.scores.dtype)

    return estimate


def token_votes(groups: Tensor, sessions: Tensor, indices: Tensor, *, minimum_votes: int = 2) -> Tensor:
    """``TokenRows.votes`` for sessions of several outputs, [N] bool: last outputs, none where a group has too few of them.

    A group without a vote gets 0 everywhere; an output that is not the last one is measured against the baseline of those.
    """
    ballot = Ballot.last(groups, sessions, indices)
    group = Grouping.of(groups[ballot.voters])
    votes = torch.zeros(len(groups), dtype=torch.bool, device=groups.device)
    votes[ballot.voters] = (group.counts >= minimum_votes)[group.index]
    return votes


def _ballot(rows: OutcomeRows, votes: Votes) -> Ballot:
    if votes == "all":
        return Ballot.every(rows.groups)
    if votes == "last":
        return Ballot.last(rows.groups, given("sessions", rows.sessions), given("indices", rows.indices))
    raise ValueError(f"unknown votes {votes!r}; known: last, all")
