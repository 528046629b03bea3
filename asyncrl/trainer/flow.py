"""Every training prompt from its issue to its end: the one place that changes ledger, leases, table and markers together."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from asyncrl.data.prompts import PromptRow
from asyncrl.errors import RunFailed
from asyncrl.metrics import spread
from asyncrl.runtime.host import Host
from asyncrl.trainer.adoption import adoption
from asyncrl.trainer.feeder import Feeder, Issue
from asyncrl.trainer.ledger import Ledger
from asyncrl.trainer.replay_buffer import ReplayBuffer
from asyncrl.trainer.sampler import ENDED, FAILED, SET_ASIDE, STALE, SURPLUS, ZERO_SPREAD, Ask, Choice, Sampler
from asyncrl.trainer.schedule import Schedule
from asyncrl.trajectory import Kept
from asyncrl.transfer_queue.client import Change, TransferQueue

ISSUES = 3
"""Issues of a prompt after which it is set aside."""
FRUITLESS = 8
"""Batches of prompts that may be dropped one after the other without a group that can be trained."""
EVICTED = {
    STALE: "training/off_policy/evicted_samples",
    ZERO_SPREAD: "training/filter_groups/evicted_samples",
    SURPLUS: "training/filter_groups/discarded_surplus_samples",
    FAILED: "training/rollout_failure/evicted_samples",
    SET_ASIDE: "training/rollout_failure/set_aside_samples",
}
"""The metric that counts the drops for a reason."""


class Prompts(Protocol):
    """Where prompts come from."""

    def take(self, count: int) -> list[tuple[str, PromptRow]]:
        """The next uses of prompts."""
        ...

    def row(self, uid: str) -> PromptRow:
        """The prompt of a use."""
        ...


@dataclass(slots=True)
class FlowCounts:
    """What became of prompts since the last report."""

    dropped: Counter[str] = field(default_factory=Counter)
    reissued: int = 0
    reissued_tokens: int = 0
    """Sampled tokens with which prompts were issued again: their answers go on from there."""
    discarded_tokens: int = 0
    """Sampled tokens of finished groups that were dropped."""
    discarded_lengths: list[int] = field(default_factory=list)
    """Tokens of each answer of these groups."""
    cut_answers: int = 0
    """Sessions of groups that were dropped while they ran."""
    waited: float = 0.0
    """Seconds in which the loop waited for groups."""
    stale: list[int] = field(default_factory=list)
    """How stale the groups were that were dropped for it."""

    def discard(self, tags: Sequence[Mapping[str, Any]]) -> None:
        """These rows will not be trained."""
        self.discarded_tokens += sum(int(tag["trainable_len"]) for tag in tags)
        self.discarded_lengths += [int(tag["response_len"]) for tag in tags]

    def numbers(self, trained: Sequence[int]) -> dict[str, float]:
        """The counts under the names of the log; ``trained``: the lengths of the answers that were trained meanwhile."""
        return {
            **{name: self.dropped[reason] for reason, name in EVICTED.items()},
            "training/prompts/reissued": self.reissued,
            "training/reissued_tokens": self.reissued_tokens,
            "training/discarded_tokens": self.discarded_tokens,
            "training/discarded_answers": len(self.discarded_lengths),
            "training/cut_answers": self.cut_answers,
            "perf/trainer_wait_s": self.waited,
            **spread("training/issued_response_length", [*trained, *self.discarded_lengths]),
            **spread("training/off_policy/evicted_samples_staleness", self.stale),
        }


class PromptFlow:
    """Issues, leases, drops and samples the prompts of the ``train`` partition.

    A lease lasts ``lease_seconds``; one that runs out, whose agent worker died or whose marker is lost ends, and the prompt is
    issued again under the next one. After three issues it is set aside, by name.
    """

    def __init__(
        self,
        *,
        ledger: Ledger,
        prompts: Prompts,
        feeder: Feeder,
        replay: ReplayBuffer,
        sampler: Sampler,
        queue: TransferQueue,
        schedule: Schedule,
        host: Host,
        say: Callable[[str], None],
        batch: int,
        total_steps: int,
        lease_seconds: float,
        saves: bool = False,
    ) -> None:
        """``saves``: checkpoints are written, so that a journal keeps what is dropped until one knows of it."""
        self.ledger, self.prompts, self.feeder, self.replay, self.sampler = ledger, prompts, feeder, replay, sampler
        self._queue, self._schedule, self._host, self._say = queue, schedule, host, say
        self._batch, self._total_steps, self._lease_seconds = batch, total_steps, lease_seconds
        self._saves = saves
        self._issues: dict[str, Issue] = {}
        self._since: dict[str, float] = {}
        self._ended: dict[str, str] = {}
        self._adoptable: dict[str, Mapping[str, Any]] = {}
        """Markers of finished groups whose prompts the data has not reached again."""
        self.counts = FlowCounts()

    async def submit(self, step: int) -> None:
        """Issue as many prompts as the schedule has room for at the begin of ``step``."""
        if step > self._total_steps:
            raise RunFailed(f"there is no step {step}: the run has {self._total_steps} (trainer.total_training_steps)")
        await self._issue(self._schedule.room(self._batch, self._in_flight, self._remaining(step, self._batch)), step)

    async def sample(self, ask: Ask) -> dict[str, list[str]]:
        """The groups of a local update, in the order of issue, with what failed in each.

        Drops what the sampler gives up, and issues what it asks for, but never more than the remaining steps can train.
        Raises RunFailed when nothing can move any more, or when batch after batch brings no group that can be trained.
        """
        fruitless = 0
        while True:
            await self._renew(ask.step)
            choice = self.sampler.choose(self.replay.table.groups(), ask)
            await self._drop(choice.drop, ask.step)
            fruitless = fruitless + len(choice.drop) if choice.take is None and not self.replay.table.settled() else 0
            await self._issue(self._replacements(choice, ask), ask.step)
            if choice.take is not None:
                return self.replay.table.take(list(choice.take))
            if choice.drop:
                if fruitless > FRUITLESS * self._batch:
                    raise RunFailed(self._stuck(ask, f"{fruitless} prompts in a row gave no group that can be trained"))
                continue
            if all(group.settled for group in self.replay.table.groups()):
                raise RunFailed(self._stuck(ask, "nothing is in flight"))
            began = self._host.clock()
            await self.replay.next_change(f"{len(self.replay.table.settled())} of {ask.count} groups settled", self._next_expiry())
            self.counts.waited += self._host.clock() - began

    def train(self, uids: Sequence[str], step: int) -> None:
        """These groups were trained at ``step``."""
        self.ledger.train(uids, step)
        for uid in uids:
            del self._issues[uid], self._since[uid]

    async def end(self, step: int) -> None:
        """The run is over after ``step``: what is still in flight will not be trained."""
        # No checkpoint knows of these: a run that goes on with more steps finds them.
        await self._drop(dict.fromkeys([group.uid for group in self.replay.table.groups()], ENDED), step + 1)
        if self._adoptable:
            await self.feeder.clear_rows(self._adoptable)
            await self._queue.kv_clear(list(self._adoptable), self.replay.partition_id)

    def worker_died(self, number: int, cause: str) -> None:
        """Agent worker ``number`` lost its groups: their leases end. Takes effect at the next sample."""
        self._ended |= {uid: cause for uid, issue in self._issues.items() if self.feeder.worker_of(issue) == number}
        self.replay.wake()

    async def resume(self, step: int, begun: Mapping[str, Mapping[str, Kept]], *, newer: bool) -> None:
        """Go on after the checkpoint of ``step``: take over what the queue still has, issue again what was in flight.

        ``begun``: the answers to go on with, by uid and session. ``newer``: see ``adoption``.
        """
        partition, state = self.replay.partition_id, self.ledger.state()
        rows = await self._queue.kv_list(partition)
        found = adoption(state, rows, step, newer=newer)
        await self._queue.kv_clear(found.clear, partition)
        self._adoptable = dict(found.later)
        for uid, marker in found.finished.items():
            self._adopt(self._first_issue(uid, state.in_flight[uid]), marker)
        again = [replace(self._first_issue(uid, state.in_flight[uid]), kept=begun.get(uid, {})) for uid in found.again]
        self.counts.reissued += len(again)
        self.counts.reissued_tokens += sum(len(kept.token_ids) for issue in again for kept in issue.kept.values())
        await self._send(again)
        if found.finished or found.later or found.again:
            kept = len(found.finished) + len(found.later)
            self._say(f"{kept} finished groups of the attempt before are taken over, {len(found.again)} prompts are issued again")

    def take_counts(self, trained: Sequence[int]) -> dict[str, float]:
        """What happened to prompts since the last call, and how many there are of each kind; ``trained`` as for ``FlowCounts``."""
        counts, self.counts = self.counts, FlowCounts()
        return counts.numbers(trained) | {f"training/prompts/{name}": count for name, count in self.ledger.counts().items()}

    @property
    def _in_flight(self) -> int:
        return self.ledger.counts()["in_flight"]

    def _remaining(self, step: int, of_step: int) -> int:
        """How many prompts can still be trained, ``of_step`` of them in this step."""
        return (self._total_steps - step) * self._batch + of_step

    def _replacements(self, choice: Choice, ask: Ask) -> int:
        """As many as asked for, as far as steps remain to train them; a filter within the step draws as many as it needs."""
        if not self._schedule.whole_groups:
            return choice.issue
        return max(0, min(choice.issue, self._remaining(ask.step, ask.count + ask.later) - self._in_flight))

    async def _issue(self, count: int, step: int) -> None:
        if count > 0:
            issues = [Issue(uid, row, step, self.ledger.issue(uid, step)) for uid, row in self.prompts.take(count)]
            for issue in issues:
                if issue.uid in self._adoptable:
                    self._adopt(issue, self._adoptable.pop(issue.uid))
            await self._send([issue for issue in issues if issue.uid not in self._issues])

    def _first_issue(self, uid: str, step: int) -> Issue:
        return Issue(uid, self.prompts.row(uid), step, self.ledger.place(uid))

    def _adopt(self, issue: Issue, marker: Mapping[str, Any]) -> None:
        """Take over a group that an earlier attempt has finished."""
        lease = int(marker.get("lease", issue.lease))
        self._remember(replace(issue, lease=lease))
        self.replay.table.apply(Change(0, "", 0, {issue.uid: dict(marker)}))
        self.replay.table.stored([issue.uid])

    def _remember(self, issue: Issue) -> None:
        self.replay.table.expect(issue.uid, issue.place, issue.step, issue.lease)
        self._issues[issue.uid], self._since[issue.uid] = issue, self._host.clock()

    async def _send(self, issues: Sequence[Issue]) -> None:
        if not issues:
            return
        for issue in issues:
            self._remember(issue)
        refused = await self.feeder.issue(issues)
        self.replay.table.stored([issue.uid for issue in issues])
        self._ended |= {issue.uid: "its agent worker died" for issue in refused}

    async def _drop(self, reasons: Mapping[str, str], step: int) -> None:
        """Forget these groups: in the ledger, in the queue, and at the agent workers that still run them."""
        if not reasons:
            return
        groups = [group for group in self.replay.table.groups() if group.uid in reasons]
        self.counts.stale += [step - 1 - group.oldest for group in groups if reasons[group.uid] == STALE and group.oldest is not None]
        for uid, reason in reasons.items():
            self.ledger.drop(uid, reason)
            self.counts.dropped[reason] += 1
        self.replay.table.take(list(reasons))
        issues = [self._issues.pop(uid) for uid in reasons]
        for uid in reasons:
            del self._since[uid]
        # The markers go first: without them nothing that still runs can put a row.
        retain = step if self._saves else None
        await self._queue.kv_clear(list(reasons), self.replay.partition_id, retain=retain)
        running = frozenset(group.uid for group in groups if not group.settled)
        await self.feeder.cancel([issue for issue in issues if issue.uid in running])
        # Also of those that ran: what ended a moment before its marker went has left rows.
        self.counts.discard(await self.feeder.clear_rows(reasons, retain))
        self.counts.cut_answers += len(running) * self.feeder.settings.sessions

    async def _renew(self, step: int) -> None:
        """Issue again what was lost or whose lease has ended; set aside what ended too often."""
        now, table = self._host.clock(), self.replay.table
        running = [group.uid for group in table.groups() if not group.settled]
        late = f"its lease of {self._lease_seconds:g} s ran out"
        ended = {uid: late for uid in running if now - self._since[uid] >= self._lease_seconds}
        # What has settled is in the queue, whatever became of its worker.
        ended |= {uid: self._ended[uid] for uid in running if uid in self._ended}
        ended |= {uid: "its shard lost it" for uid in self.replay.lost if uid in table}
        self._ended, self.replay.lost = {}, {}
        if not ended:
            return
        again = [self._issues[uid] for uid in ended if self._issues[uid].lease < ISSUES]
        aside = {uid: SET_ASIDE for uid in ended if self._issues[uid].lease >= ISSUES}
        for uid in aside:
            self._say(f"prompt {uid} is set aside: it was issued {ISSUES} times, the last time {ended[uid]}")
        await self.feeder.cancel(again)
        self.counts.reissued += len(again)
        await self._send([replace(issue, lease=issue.lease + 1, kept={}) for issue in again])
        await self._drop(aside, step)
        await self._issue(len(aside), step)

    def _next_expiry(self) -> float:
        """Seconds until the first lease of a running group runs out."""
        now = self._host.clock()
        running = [self._since[group.uid] for group in self.replay.table.groups() if not group.settled]
        return max(0.0, min(running, default=now) + self._lease_seconds - now)

    def _stuck(self, ask: Ask, why: str) -> str:
        dropped = ", ".join(f"{count} {reason}" for reason, count in self.ledger.drop_reasons().items()) or "none"
        have = f"{len(self.replay.table.settled())} of {ask.count} groups, {self.replay.table.describe()}"
        return f"step {ask.step} cannot fill the batch: {have}; dropped: {dropped}; {why}"
