"""The controller's view of a batch: keys and tags, never tensors; and how it is cut for the ranks."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

from asyncrl.algorithms.balance import balance_rows
from asyncrl.trajectory import TrajectoryKey
from asyncrl.workers.meta import BatchMeta, MiniBatch


@dataclass(frozen=True, slots=True)
class KVBatchMeta:
    """N rows of one partition, sorted by (issue order, session, index).

    ``groups`` gives the prompt group of each row as its place among the batch's prompts. Rows of greedy sessions are apart:
    ``greedy`` are their keys, ``baselines`` the score for each prompt, None without one.
    """

    partition_id: str
    uids: tuple[str, ...]
    keys: tuple[str, ...]
    tags: tuple[dict[str, Any], ...]
    groups: tuple[int, ...]
    step: int
    greedy: tuple[str, ...] = ()
    baselines: tuple[float | None, ...] = ()

    @property
    def scores(self) -> list[float]:
        """The reward of each row."""
        return [float(tag["score"]) for tag in self.tags]

    def lengths(self, name: str) -> list[int]:
        """One of the length tags of each row: ``prompt_len``, ``response_len`` or ``seq_len``."""
        return [int(tag[name]) for tag in self.tags]


def collect(partition_id: str, uids: Sequence[str], rows: Mapping[str, dict[str, Any]], step: int) -> KVBatchMeta:
    """The rows of these groups in training order, out of all rows of a partition."""
    place = {uid: position for position, uid in enumerate(uids)}
    parsed = [(TrajectoryKey.parse(key), key) for key in rows]
    chosen = sorted(
        ((place[name.uid], *name.order()[1:], key) for name, key in parsed if name.uid in place),
    )
    # A greedy session sorts before all others; every output of it has the score of the last.
    greedy = {row[-1]: row[0] for row in chosen if row[1] < 0}
    baselines: dict[int, float] = {group: float(rows[key]["score"]) for key, group in greedy.items()}
    trained = [row for row in chosen if row[-1] not in greedy]
    keys = tuple(row[-1] for row in trained)
    return KVBatchMeta(
        partition_id=partition_id,
        uids=tuple(uids),
        keys=keys,
        tags=tuple(rows[key] for key in keys),
        groups=tuple(row[0] for row in trained),
        step=step,
        greedy=tuple(greedy),
        baselines=tuple(baselines.get(group) for group in range(len(uids))),
    )


def joined(batches: Sequence[KVBatchMeta]) -> KVBatchMeta:
    """The rows of the local updates of a step as one batch."""
    if len(batches) == 1:
        return batches[0]
    groups: list[int] = []
    prompts = 0
    for batch in batches:
        groups += [prompts + group for group in batch.groups]
        prompts += len(batch.uids)
    return KVBatchMeta(
        partition_id=batches[0].partition_id,
        uids=tuple(chain.from_iterable(batch.uids for batch in batches)),
        keys=tuple(chain.from_iterable(batch.keys for batch in batches)),
        tags=tuple(chain.from_iterable(batch.tags for batch in batches)),
        groups=tuple(groups),
        step=batches[0].step,
        greedy=tuple(chain.from_iterable(batch.greedy for batch in batches)),
        baselines=tuple(chain.from_iterable(batch.baselines for batch in batches)),
    )


def cut(batch: KVBatchMeta, mini_batches: Sequence[Sequence[int]], ranks: int) -> list[BatchMeta]:
    """One BatchMeta per rank.

    ``mini_batches`` lists the groups of each optimizer step. Rows are balanced over the ranks inside one mini-batch by
    Karmarkar-Karp on their workload, and padding fills it up to the next multiple of ``ranks``: so what is trained
    together does not depend on the number of ranks. A mini-batch without any row is left out.
    """
    shares: list[list[MiniBatch]] = [[] for _ in range(ranks)]
    for groups in mini_batches:
        member = frozenset(groups)
        rows = [row for row, group in enumerate(batch.groups) if group in member]
        if not rows:
            continue
        padding = -len(rows) % ranks
        lengths = [int(batch.tags[row]["seq_len"]) for row in rows] + [2] * padding
        for rank, positions in enumerate(balance_rows(lengths, ranks)):
            keys = [batch.keys[rows[position]] for position in positions if position < len(rows)]
            shares[rank].append(MiniBatch(keys, padding=len(positions) - len(keys)))
    return [BatchMeta(batch.partition_id, share, batch.step) for share in shares]
