"""The issued prompt groups as the queue's markers describe them: pure state, nothing waits here."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from asyncrl.trajectory import Status
from asyncrl.transfer_queue.client import Change, Snapshot


@dataclass(slots=True)
class Group:
    """One issued group that is neither trained nor dropped."""

    uid: str
    place: int
    """Its place in the order of issue."""
    step: int
    """The step that issued it."""
    lease: int = 0
    """The lease under which it runs; what is said under another is of an earlier issue."""
    status: Status = Status.PENDING
    oldest: int | None = None
    """Version of its oldest trainable token; None as long as none is known."""
    metric: tuple[float, ...] = ()
    """What the filter looks at, one number for each session that succeeded."""
    failures: list[str] = field(default_factory=list)
    """Each failed session with its cause."""
    put: bool = False
    """Whether the queue has acknowledged its marker."""

    @property
    def settled(self) -> bool:
        """Whether every session has ended."""
        return self.status.settled

    @property
    def sessions(self) -> int:
        """Sessions that left a row."""
        return len(self.metric)


class GroupTable:
    """What is known of every issued group, in the order of issue."""

    def __init__(self) -> None:
        self._groups: dict[str, Group] = {}

    def __contains__(self, uid: str) -> bool:
        return uid in self._groups

    def expect(self, uid: str, place: int, step: int = 0, lease: int = 0) -> None:
        """A group was issued, or issued again: nothing is known of it yet."""
        self._groups[uid] = Group(uid, place, step, lease)

    def stored(self, uids: list[str]) -> None:
        """The queue has acknowledged the markers of these groups."""
        for uid in uids:
            if uid in self._groups:
                self._groups[uid].put = True

    def apply(self, event: Snapshot | Change, slot_of: Callable[[str], int] | None = None) -> list[str]:
        """Take over what a watch event says of the markers; those of groups that are not expected are passed over.

        Returns the groups whose markers went with a shard that was restarted without a journal; ``slot_of`` gives the slot
        of a uid.
        """
        for uid, tag in event.rows.items():
            group = self._groups.get(uid)
            if group is not None and tag is not None and tag.get("lease", group.lease) == group.lease:
                _describe(group, tag)
        if slot_of is None or not isinstance(event, Snapshot) or not event.lost:
            return []
        stored = [group.uid for group in self._groups.values() if group.put and slot_of(group.uid) == event.slot]
        return [uid for uid in stored if uid not in event.rows]

    def groups(self) -> list[Group]:
        """Every group, oldest issue first."""
        return sorted(self._groups.values(), key=lambda group: group.place)

    def settled(self) -> list[str]:
        """The uids of settled groups, oldest issue first."""
        return [group.uid for group in self.groups() if group.settled]

    def take(self, uids: list[str]) -> dict[str, list[str]]:
        """Forget these groups; return what failed in each."""
        return {uid: self._groups.pop(uid).failures for uid in uids}

    def describe(self) -> str:
        """One line: how many groups are in which status."""
        counts = dict.fromkeys(Status, 0)
        for group in self._groups.values():
            counts[group.status] += 1
        return ", ".join(f"{count} {status}" for status, count in counts.items() if count) or "nothing in flight"


def _describe(group: Group, tag: Mapping[str, Any]) -> None:
    group.status = Status(tag["status"])
    group.oldest = tag.get("oldest_version")
    group.metric = tuple(tag.get("metric") or ())
    group.failures = list(tag.get("failures") or ())
