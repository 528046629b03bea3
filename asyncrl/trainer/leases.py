"""The leases of the groups in flight: under which issue each of them runs, and when that has ended."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from asyncrl.trainer.feeder import Feeder, Issue
from asyncrl.trainer.replay_buffer import ReplayBuffer

ISSUES = 3
"""Issues of a prompt after which it is given up."""


@dataclass(frozen=True, slots=True)
class EndedLease:
    """An issue that brought no group, and why."""

    issue: Issue
    cause: str

    @property
    def last(self) -> bool:
        """Whether the prompt was issued as often as it may be."""
        return self.issue.lease >= ISSUES

    def renewed(self) -> Issue:
        """The next issue of the prompt; its answers begin anew."""
        return replace(self.issue, lease=self.issue.lease + 1, kept={})


class Leases:
    """What is in flight in one partition. Pure state beside the group table of ``replay``: who issues groups asks what has ended.

    A lease ends when its agent worker died or did not accept it, when its marker went with a shard, and after ``seconds``.
    """

    def __init__(self, replay: ReplayBuffer, clock: Callable[[], float], seconds: float) -> None:
        self._replay, self._clock, self._seconds = replay, clock, seconds
        self._issues: dict[str, Issue] = {}
        self._since: dict[str, float] = {}
        self._broken: dict[str, str] = {}

    def __contains__(self, uid: str) -> bool:
        return uid in self._issues

    def begin(self, issue: Issue) -> None:
        """A prompt is issued, or issued again: nothing is known of its group yet."""
        self._replay.table.expect(issue.uid, issue.place, issue.step, issue.lease)
        self._issues[issue.uid], self._since[issue.uid] = issue, self._clock()

    def forget(self, uid: str) -> Issue:
        """Nobody waits for the group of ``uid`` any more; returns its last issue."""
        del self._since[uid]
        return self._issues.pop(uid)

    def refuse(self, issues: Iterable[Issue]) -> None:
        """No agent worker accepted these."""
        self._broken |= {issue.uid: "its agent worker died" for issue in issues}

    def worker_died(self, feeder: Feeder, number: int, cause: str) -> None:
        """Agent worker ``number`` lost its groups. Whoever waits for a group looks again."""
        self._broken |= {uid: cause for uid, issue in self._issues.items() if feeder.worker_of(issue) == number}
        self._replay.wake()

    def ended(self) -> list[EndedLease]:
        """The leases that have ended since the last call, of groups that have not settled; and of those that went with a shard."""
        now, table = self._clock(), self._replay.table
        running = [group.uid for group in table.groups() if not group.settled]
        late = f"its lease of {self._seconds:g} s ran out"
        ended = {uid: late for uid in running if now - self._since[uid] >= self._seconds}
        # What has settled is in the queue, whatever became of its worker.
        ended |= {uid: self._broken[uid] for uid in running if uid in self._broken}
        ended |= {uid: "its shard lost it" for uid in self._replay.lost if uid in table}
        self._broken, self._replay.lost = {}, {}
        return [EndedLease(self._issues[uid], cause) for uid, cause in ended.items()]

    def next_expiry(self) -> float:
        """Seconds until the first lease of a running group runs out."""
        now = self._clock()
        running = [self._since[group.uid] for group in self._replay.table.groups() if not group.settled]
        return max(0.0, min(running, default=now) + self._seconds - now)
