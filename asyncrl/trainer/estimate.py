"""What the controller tells an advantage estimator about a batch: scores, groups and votes, never tensors of tokens."""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from asyncrl.algorithms.advantages import OutcomeRows, token_votes
from asyncrl.trainer.batch import KVBatchMeta
from asyncrl.trajectory import TrajectoryKey
from asyncrl.workers.advantages import RowFacts
from asyncrl.workers.meta import BatchMeta


def outcome_rows(batch: KVBatchMeta, rewards: Sequence[float], components: Mapping[str, Tensor]) -> OutcomeRows:
    """The rows of a batch for an estimator of outcomes; ``rewards`` as trained, ``components`` [N] by name."""
    groups, sessions, indices = _places(batch)
    return OutcomeRows(
        scores=torch.tensor(rewards, dtype=torch.float32),
        groups=groups,
        lengths=torch.tensor(batch.lengths("trainable_len"), dtype=torch.int64),
        sessions=sessions,
        indices=indices,
        components=components,
    )


def row_facts(batch: KVBatchMeta, shares: Sequence[BatchMeta]) -> list[RowFacts]:
    """For each rank what an estimator of tokens must know of its rows and of the others."""
    votes = token_votes(*_places(batch)).tolist()
    facts = {key: (group, vote) for key, group, vote in zip(batch.keys, batch.groups, votes, strict=True)}
    width = max(batch.lengths("response_len"), default=0)
    return [
        RowFacts(
            groups=[facts[key][0] for key in share.keys],
            group_count=len(batch.uids),
            votes=[facts[key][1] for key in share.keys],
            baselines=[batch.baselines[facts[key][0]] for key in share.keys],
            width=width,
        )
        for share in shares
    ]


def _places(batch: KVBatchMeta) -> tuple[Tensor, Tensor, Tensor]:
    """Group, session and index of each row, [N] int64; two rows share a session number when they are of one session."""
    names = [TrajectoryKey.parse(key) for key in batch.keys]
    numbers: dict[tuple[str, str], int] = {}
    sessions = [numbers.setdefault((name.uid, name.session), len(numbers)) for name in names]
    columns = (batch.groups, sessions, [name.index for name in names])
    groups, session, index = (torch.tensor(column, dtype=torch.int64) for column in columns)
    return groups, session, index
