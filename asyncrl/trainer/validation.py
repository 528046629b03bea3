"""Validation: the same pipe as training on the partition ``val``, nothing trained."""

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from asyncrl.algorithms.validation_metrics import SUCCESS_ONLY, Answers, log_names, validation_metrics
from asyncrl.data.prompts import PromptRow
from asyncrl.runtime.host import Host
from asyncrl.trainer.batch import KVBatchMeta, collect
from asyncrl.trainer.feeder import Feeder, Issue
from asyncrl.trainer.leases import ISSUES, EndedLease, Leases
from asyncrl.trainer.replay_buffer import ReplayBuffer
from asyncrl.transfer_queue.client import TransferQueue
from asyncrl.workers.fields import REPORT

VOTE = "pred"
"""What a reward function says that an answer amounts to; the majority of it is reported."""


@dataclass(frozen=True, slots=True)
class SessionResult:
    """The last output of one validation session: its values by variable; none for a session that failed."""

    data_source: str
    uid: str
    values: dict[str, float]
    vote: str | None = None


class Validation:
    """Runs every validation row once, ``batch_size`` rows at a time, and leaves the partition empty.

    It always ends: a group is issued again as the ``Leases`` say, and after three issues its sessions count as failed.
    """

    def __init__(
        self,
        queue: TransferQueue,
        feeder: Feeder,
        replay: ReplayBuffer,
        rows: Sequence[PromptRow],
        *,
        sessions: int,
        seed: int,
        batch_size: int | None,
        host: Host,
        say: Callable[[str], None],
        lease_seconds: float,
    ) -> None:
        self._queue, self._feeder, self._replay = queue, feeder, replay
        self._rows, self._sessions, self._seed = rows, sessions, seed
        self._batch_size = batch_size or len(rows)
        self._leases, self._say = Leases(replay, host.clock, lease_seconds), say

    def worker_died(self, number: int, cause: str) -> None:
        """Agent worker ``number`` lost its groups: those of a validation that runs are issued again."""
        self._leases.worker_died(self._feeder, number, cause)

    async def forget(self) -> None:
        """Clear what a validation that was cut short has left: an earlier attempt's rows come back where the queue keeps a journal."""
        partition = self._replay.partition_id
        await self._queue.kv_clear(list(await self._queue.kv_list(partition)), partition)

    async def run(self, step: int) -> dict[str, float]:
        """Metrics of one validation under verl's names; empty without validation rows."""
        results: list[SessionResult] = []
        for start in range(0, len(self._rows), self._batch_size or 1):
            rows = range(start, min(start + self._batch_size, len(self._rows)))
            results += await self._run_batch({f"s{self._seed}v{step}p{row}": self._rows[row] for row in rows}, step)
        return summarise(results, self._sessions)

    async def _run_batch(self, prompts: dict[str, PromptRow], step: int) -> list[SessionResult]:
        partition = self._replay.partition_id
        await self._issue(Feeder.numbered(prompts, step))
        uids = await self._settled()
        batch = collect(partition, uids, await self._queue.kv_list(partition, {"status": "success"}), step)
        extras: list[Any] = []
        if batch.keys:
            extras = (await self._queue.kv_batch_get(batch.keys, partition, REPORT.reads))["reward_extra_info"].to_list()
        await self._queue.kv_clear([*uids, *batch.keys], partition)
        return session_results(batch, extras, {uid: row.data_source for uid, row in prompts.items()}, self._sessions)

    async def _issue(self, issues: Sequence[Issue]) -> None:
        for issue in issues:
            self._leases.begin(issue)
        self._leases.refuse(await self._feeder.issue(issues))
        self._replay.table.stored([issue.uid for issue in issues])

    async def _settled(self) -> list[str]:
        """Wait until nothing runs any more; the groups that have settled, in the order of issue.

        Raises RunFailed when the watch has ended.
        """
        table = self._replay.table
        while True:
            await self._renew()
            ready, issued = table.settled(), len(table.groups())
            if len(ready) == issued:
                for uid in table.take(ready):
                    self._leases.forget(uid)
                return ready
            await self._replay.next_change(f"{len(ready)} of {issued} groups settled", self._leases.next_expiry())

    async def _renew(self) -> None:
        """Issue again what was lost or whose lease has ended; give up what ended too often."""
        ended = self._leases.ended()
        again = [each for each in ended if not each.last]
        if again:
            await self._feeder.cancel([each.issue for each in again])
            await self._issue([each.renewed() for each in again])
        await self._give_up([each for each in ended if each.last])

    async def _give_up(self, ended: Sequence[EndedLease]) -> None:
        """No session of these groups is counted: nothing of them stays in the queue, and nothing will come."""
        if not ended:
            return
        uids = [each.issue.uid for each in ended]
        for each in ended:
            self._say(f"validation prompt {each.issue.uid} counts as failed: it was issued {ISSUES} times, the last time {each.cause}")
            self._leases.forget(each.issue.uid)
        self._replay.table.take(uids)
        # The markers go first: without them nothing that still runs can put a row.
        await self._queue.kv_clear(uids, self._replay.partition_id)
        await self._feeder.cancel([each.issue for each in ended])
        await self._feeder.clear_rows(uids)


def session_results(
    batch: KVBatchMeta, extras: Sequence[Mapping[str, Any]], sources: Mapping[str, str], sessions: int
) -> list[SessionResult]:
    """One result per session asked for: its last output; a failed session counts as wrong, with ``acc_success_only`` beside."""
    last: dict[tuple[str, str], tuple[int, dict[str, float], str | None]] = {}
    for tag, extra in zip(batch.tags, extras, strict=True):
        # The score is the reward, whatever the reward function returns under that name besides.
        values = {name: float(value) for name, value in extra.items() if isinstance(value, int | float)} | {"reward": float(tag["score"])}
        session = (str(tag["uid"]), str(tag["session"]))
        if session not in last or last[session][0] < int(tag["index"]):
            last[session] = (int(tag["index"]), values, str(extra[VOTE]) if VOTE in extra else None)
    results: list[SessionResult] = []
    for uid, source in sources.items():
        for number in range(sessions):
            found = last.get((uid, str(number)))
            values = {} if found is None else found[1]
            if "acc" in values:
                values = values | {SUCCESS_ONLY: values["acc"]}
            results.append(SessionResult(source, uid, values, None if found is None else found[2]))
    return with_failures_wrong(results)


def with_failures_wrong(results: Sequence[SessionResult]) -> list[SessionResult]:
    """Give a session without values 0 in the core variables of its source: ``reward``, and ``acc`` where others have it."""
    judged = {result.data_source for result in results if "acc" in result.values}
    wrong = {source: {"reward": 0.0} | ({"acc": 0.0} if source in judged else {}) for source in {r.data_source: None for r in results}}
    return [result if result.values else SessionResult(result.data_source, result.uid, wrong[result.data_source]) for result in results]


def summarise(results: Sequence[SessionResult], sessions: int) -> dict[str, float]:
    """All validation metrics under the names of the log; for more than one session ``pass@N`` by source.

    ``pass@N`` is the share of uids with a right answer among their N sessions: one whose ``acc``, or ``reward`` where
    there is no ``acc``, is at least 1.
    """
    names = dict.fromkeys(name for result in results for name in result.values)
    answers = Answers(
        [result.data_source for result in results],
        [result.uid for result in results],
        {name: [result.values.get(name) for result in results] for name in names},
        [result.vote for result in results],
    )
    return log_names(validation_metrics(answers)) | (_passes(results, sessions) if sessions > 1 else {})


def _passes(results: Sequence[SessionResult], sessions: int) -> dict[str, float]:
    solved: dict[str, dict[str, bool]] = defaultdict(lambda: defaultdict(bool))
    for result in results:
        right = result.values.get("acc", result.values["reward"]) >= 1.0
        solved[result.data_source][result.uid] |= right
    return {f"val-aux/{source}/pass@{sessions}": sum(by_uid.values()) / len(by_uid) for source, by_uid in solved.items()}
