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
from asyncrl.trainer.leases import ISSUES, Leases
from asyncrl.trainer.ledger import Ledger
from asyncrl.trainer.progress import Progress
from asyncrl.trainer.replay_buffer import ReplayBuffer
from asyncrl.trainer.sampler import ENDED, FAILED, SET_ASIDE, STALE, SURPLUS, ZERO_SPREAD, Ask, Choice, Sampler
from asyncrl.trainer.schedule import Schedule
from asyncrl.trajectory import Kept
from asyncrl.transfer_queue.client import Change, TransferQueue

FRUITLESS = 8
"""Times what may be in flight: so many issues in a row may bring no group that can be trained."""
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

    A prompt whose lease ends, as the ``Leases`` say, is issued again under the next one. After three issues it is set aside, by
    name. A lease lasts ``lease_seconds``.
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
        most_batches: int = 0,
    ) -> None:
        """``saves``: checkpoints are written, so that a journal keeps what is dropped until one knows of it. ``most_batches``: so
        many times the prompts of a step may be issued for it, by the user's word; 0 for no word."""
        self.ledger, self.prompts, self.feeder, self.replay, self.sampler = ledger, prompts, feeder, replay, sampler
        self._queue, self._schedule, self._host, self._say = queue, schedule, host, say
        self._batch, self._total_steps = batch, total_steps
        self._saves = saves
        self._progress = Progress(max(FRUITLESS, most_batches) * schedule.most(batch))
        self._leases = Leases(replay, host.clock, lease_seconds)
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
        Raises RunFailed when nothing can move any more, or when what moves brings no group that can be trained.
        """
        self._progress.begin()
        while True:
            await self._renew(ask)
            choice = self.sampler.choose(self.replay.table.groups(), ask)
            await self._drop(choice.drop, ask.step)
            if self._progress.stopped and len(self.replay.table.settled()) < self._needed(ask):
                raise RunFailed(self._stuck(ask, f"{self._progress.longest} issues in a row gave no group that can be trained"))
            await self._issue(self._replacements(choice, ask), ask.step)
            if choice.take is not None:
                return self.replay.table.take(list(choice.take))
            if choice.drop:
                continue
            if all(group.settled for group in self.replay.table.groups()):
                raise RunFailed(self._stuck(ask, "nothing is in flight"))
            began = self._host.clock()
            await self.replay.next_change(f"{len(self.replay.table.settled())} of {ask.count} groups settled", self._leases.next_expiry())
            self.counts.waited += self._host.clock() - began

    def train(self, uids: Sequence[str], step: int) -> None:
        """These groups were trained at ``step``."""
        self.ledger.train(uids, step)
        self._progress.train(uids)
        for uid in uids:
            self._leases.forget(uid)

    async def end(self, step: int) -> None:
        """The run is over after ``step``: what is still in flight will not be trained."""
        # No checkpoint knows of these: a run that goes on with more steps finds them.
        await self._drop(dict.fromkeys([group.uid for group in self.replay.table.groups()], ENDED), step + 1)
        if self._adoptable:
            await self.feeder.clear_rows(self._adoptable)
            await self._queue.kv_clear(list(self._adoptable), self.replay.partition_id)

    def worker_died(self, number: int, cause: str) -> None:
        """Agent worker ``number`` lost its groups: their leases end. Takes effect at the next sample."""
        self._leases.worker_died(self.feeder, number, cause)

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
            await self._send([issue for issue in issues if issue.uid not in self._leases])

    def _first_issue(self, uid: str, step: int) -> Issue:
        return Issue(uid, self.prompts.row(uid), step, self.ledger.place(uid))

    def _adopt(self, issue: Issue, marker: Mapping[str, Any]) -> None:
        """Take over a group that an earlier attempt has finished."""
        lease = int(marker.get("lease", issue.lease))
        self._remember(replace(issue, lease=lease))
        self.replay.table.apply(Change(0, "", 0, {issue.uid: dict(marker)}))
        self.replay.table.stored([issue.uid])

    def _remember(self, issue: Issue) -> None:
        self._leases.begin(issue)
        self._progress.issue(issue.uid)

    async def _send(self, issues: Sequence[Issue]) -> None:
        if not issues:
            return
        for issue in issues:
            self._remember(issue)
        self._leases.refuse(await self.feeder.issue(issues))
        self.replay.table.stored([issue.uid for issue in issues])

    async def _drop(self, reasons: Mapping[str, str], step: int) -> None:
        """Forget these groups: in the ledger, in the queue, and at the agent workers that still run them."""
        if not reasons:
            return
        groups = [group for group in self.replay.table.groups() if group.uid in reasons]
        self.counts.stale += [step - 1 - group.oldest for group in groups if reasons[group.uid] == STALE and group.oldest is not None]
        for uid, reason in reasons.items():
            self.ledger.drop(uid, reason)
            self.counts.dropped[reason] += 1
        self._progress.lose(reasons)
        self.replay.table.take(list(reasons))
        issues = [self._leases.forget(uid) for uid in reasons]
        # The markers go first: without them nothing that still runs can put a row.
        retain = step if self._saves else None
        await self._queue.kv_clear(list(reasons), self.replay.partition_id, retain=retain)
        running = frozenset(group.uid for group in groups if not group.settled)
        await self.feeder.cancel([issue for issue in issues if issue.uid in running])
        # Also of those that ran: what ended a moment before its marker went has left rows.
        self.counts.discard(await self.feeder.clear_rows(reasons, retain))
        self.counts.cut_answers += len(running) * self.feeder.settings.sessions

    async def _renew(self, ask: Ask) -> None:
        """Issue again what was lost or whose lease has ended; set aside what ended too often."""
        ended = self._leases.ended()
        again, last = [each for each in ended if not each.last], [each for each in ended if each.last]
        for each in last:
            self._say(f"prompt {each.issue.uid} is set aside: it was issued {ISSUES} times, the last time {each.cause}")
        self._progress.lose(each.issue.uid for each in again)
        await self.feeder.cancel([each.issue for each in again])
        self.counts.reissued += len(again)
        await self._send([each.renewed() for each in again])
        await self._drop({each.issue.uid: SET_ASIDE for each in last}, ask.step)
        await self._issue(self._missing(len(last), ask), ask.step)

    def _missing(self, aside: int, ask: Ask) -> int:
        """How many prompts follow those that were set aside: within a step none where enough others are there."""
        return aside if self._schedule.whole_groups else max(0, min(aside, self._needed(ask) - self._in_flight))

    def _needed(self, ask: Ask) -> int:
        """How many groups may be waited for: where all of a step's are sampled within it, those of its later local updates too."""
        return ask.count if self._schedule.whole_groups else ask.count + ask.later

    def _stuck(self, ask: Ask, why: str) -> str:
        dropped = ", ".join(f"{count} {reason}" for reason, count in self.ledger.drop_reasons().items()) or "none"
        have = f"{len(self.replay.table.settled())} of {self._needed(ask)} groups, {self.replay.table.describe()}"
        return f"step {ask.step} cannot fill the batch: {have}; dropped: {dropped}; {why}"
