"""Who votes in a group: the last output of each session, once.

A session whose context was reset leaves several outputs. Were each of them a row of its own, a session with three outputs
would weigh three times in its group's mean.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from asyncrl.algorithms.advantages.grouping import Grouping

OutcomeEstimator = Callable[[Tensor, Tensor], Tensor]
"""``(scores [V], groups [V]) -> advantages [V]``: one number per voting row."""


def outcome_advantages(
    estimator: OutcomeEstimator,
    scores: Tensor,
    groups: Tensor,
    sessions: Tensor,
    indices: Tensor,
    *,
    minimum_votes: int = 2,
    trainable: Tensor | None = None,
) -> Tensor:
    """The advantage of every row from the last outputs of the sessions.

    ``scores`` [N] float; ``groups``, ``sessions``, ``indices`` [N] int64: prompt group, session in the group, output in
    the session. Only the row with the highest index of a session votes (the first of them where an index occurs twice);
    its advantage goes to all rows of the session. A group with fewer than ``minimum_votes`` votes never reaches the
    estimator and gets 0: a single vote has nothing to be compared with. Returns [N] in the dtype of ``scores``.

    ``trainable`` [N] bool, verl's reading of a last output that was masked as a whole: it votes, but its session gets 0.
    None gives the session its advantage all the same.

    >>> from asyncrl.algorithms.advantages.grpo import grpo
    >>> scores, indices = torch.tensor([9.0, 1.0, 0.0]), torch.tensor([0, 1, 0])
    >>> outcome_advantages(grpo, scores, torch.tensor([4, 4, 4]), torch.tensor([0, 0, 1]), indices)
    tensor([ 0.7071,  0.7071, -0.7071])
    """
    session = Grouping.of(torch.unique(torch.stack([groups, sessions]), dim=1, return_inverse=True)[1])
    last = indices == session.largest(indices)[session.index]
    rows = torch.arange(len(scores), device=scores.device)
    voters = session.smallest(torch.where(last, rows, len(scores)))
    group = Grouping.of(groups[voters])
    enough = (group.counts >= minimum_votes)[group.index]
    advantages = torch.zeros(len(voters), dtype=scores.dtype, device=scores.device)
    if bool(enough.any()):
        heard = voters[enough]
        advantages[enough] = estimator(scores[heard], groups[heard]).to(scores.dtype)
    if trainable is not None:
        advantages = torch.where(trainable[voters], advantages, 0.0)
    return advantages[session.index]
