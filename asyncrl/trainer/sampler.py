"""Which groups are trained next, which are given up, and how many prompts follow: pure rules over the group table.

``k`` is the step, ``P`` its prompts. A group's staleness at step k is ``(k - 1) - oldest``, the version with which the step
begins less that of the group's oldest trainable token; ``max_off_policy_threshold`` m allows at most m - 1.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol, runtime_checkable

from asyncrl.algorithms.dynamic_sampling import worth_training
from asyncrl.errors import RunFailed
from asyncrl.trainer.groups import Group
from asyncrl.trajectory import Status

FAILED = "failed"
STALE = "stale"
ZERO_SPREAD = "zero spread"
SURPLUS = "surplus"
ENDED = "run ended"
SET_ASIDE = "set aside"
"""Reasons for which a prompt is dropped."""
GRANT = 2
"""Prompts that follow one filtered group in sync, where all of a step's groups are sampled within the step."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """What a local update wants."""

    step: int
    """k."""
    count: int
    """Groups of this local update."""
    batch: int
    """P."""
    later: int = 0
    """Groups that later local updates of this step will take."""


@dataclass(frozen=True, slots=True)
class Choice:
    """What follows from the state of the groups."""

    take: tuple[str, ...] | None = None
    """The groups to train on, in their order of issue; None: wait for the next change."""
    drop: Mapping[str, str] = field(default_factory=dict)
    """Groups that will not be trained, and why; those among them that still run are ended."""
    issue: int = 0
    """Prompts to issue in their place."""


@runtime_checkable
class Sampler(Protocol):
    """A rule; a user's own as well (``trainer.v1.sampler.custom_sampler``)."""

    def choose(self, groups: Sequence[Group], ask: Ask) -> Choice:
        """Decide over all groups that are neither trained nor dropped, oldest issue first.

        Called at every change until it takes ``ask.count`` groups; a group that was dropped does not come again.
        """
        ...


@dataclass(frozen=True, slots=True)
class GroupFilter:
    """DAPO's filter within a step: https://arxiv.org/abs/2503.14476, section 3.2."""

    max_inflight_batches: int = 1
    """At most so many times P prompts run at once."""
    max_batches: int = 0
    """At most so many times P prompts are issued for one step; 0 for no limit."""


class SyncSampler:
    """All groups of the step; survivors of a failed group train.

    With a ``filter`` groups without spread are replaced twice over, until as many good ones are there as the step still needs;
    then everything in flight settles, and those that were *issued* first are taken: taking the first that finish would favour
    short answers. What later local updates of the step will take stays.
    """

    def __init__(self, *, refill_failed: bool = False, filter: GroupFilter | None = None) -> None:
        self.refill_failed, self.filter = refill_failed, filter
        self._step = self._credit = self._issued = 0

    def choose(self, groups: Sequence[Group], ask: Ask) -> Choice:
        if self.filter is not None:
            return self._filtered(groups, ask, self.filter)
        drop = {group.uid: FAILED for group in groups if self.refill_failed and group.settled and not group.sessions}
        ready = [group.uid for group in groups if group.settled and group.uid not in drop]
        return Choice(tuple(ready[: ask.count]) if len(ready) >= ask.count else None, drop, len(drop))

    def _filtered(self, groups: Sequence[Group], ask: Ask, rule: GroupFilter) -> Choice:
        if self._step != ask.step:
            self._step, self._credit, self._issued = ask.step, 0, len(groups)
        drop = {group.uid: _unfit(group) for group in groups if group.settled and not worth_training(group.metric)}
        good = [group.uid for group in groups if group.settled and group.uid not in drop]
        running, needed = sum(not group.settled for group in groups), ask.count + ask.later
        if len(good) >= needed:
            if running:
                return Choice(None, drop)
            surplus = dict.fromkeys(good[needed:], SURPLUS)
            return Choice(tuple(good[: ask.count]), {**drop, **surplus})
        self._credit += GRANT * len(drop)
        limit = rule.max_batches * ask.batch - self._issued if rule.max_batches else self._credit
        issue = max(0, min(self._credit, rule.max_inflight_batches * ask.batch - running, limit))
        if not issue and not running:
            raise _too_few(ask, len(good), needed, self._issued, rule.max_batches)
        self._credit -= issue
        self._issued += issue
        return Choice(None, drop, issue)


class AsyncSampler:
    """Whole groups only: what failed, is too old or, with ``filter``, has no spread is dropped and replaced by one prompt.

    ``drop`` takes the oldest issue first. ``wait`` takes the earliest deadline first, which is the last step that may train
    the group, and lets the step wait until what is left can still be trained in time: for every d >= 0 at most d * P groups
    have a deadline of k + d or before.

    ``max_batches``: at most so many times P prompts for one step, its own P and those that replace what is not stale; 0 for no
    limit. What is not replaced then, the next step issues.
    """

    def __init__(
        self, *, threshold: int | None, strategy: Literal["drop", "wait"] = "drop", filter: bool = False, max_batches: int = 0
    ) -> None:
        self.threshold, self.strategy, self.filter, self.max_batches = threshold, strategy, filter, max_batches
        self._step = self._issued = 0

    def choose(self, groups: Sequence[Group], ask: Ask) -> Choice:
        if self._step != ask.step:
            self._step, self._issued = ask.step, ask.batch
        drop = {group.uid: reason for group in groups if (reason := self._unwanted(group, ask.step))}
        kept = [group for group in groups if group.uid not in drop]
        ready = [group for group in kept if group.settled]
        take, issue = self._take(kept, ready, ask), self._replacements(drop, ask)
        if self.max_batches and len(ready) == len(kept) < ask.count and not issue and self._issued >= self.max_batches * ask.batch:
            raise _too_few(ask, len(ready), ask.count, self._issued, self.max_batches)
        return Choice(take, drop, issue)

    def _replacements(self, drop: Mapping[str, str], ask: Ask) -> int:
        stale = sum(reason == STALE for reason in drop.values())
        others = len(drop) - stale
        if self.max_batches:
            others = max(0, min(others, self.max_batches * ask.batch - self._issued))
        self._issued += others
        return stale + others

    def _take(self, kept: Sequence[Group], ready: Sequence[Group], ask: Ask) -> tuple[str, ...] | None:
        if len(ready) < ask.count:
            return None
        if self.strategy == "drop" or self.threshold is None:
            return tuple(group.uid for group in ready[: ask.count])
        chosen = sorted(ready, key=lambda group: (self.deadline(group, ask.step), group.place))[: ask.count]
        left = sorted(self.deadline(group, ask.step) for group in kept if group not in chosen)
        in_time = all(number <= (deadline - ask.step) * ask.batch + ask.later for number, deadline in enumerate(left, 1))
        return tuple(group.uid for group in sorted(chosen, key=lambda group: group.place)) if in_time else None

    def deadline(self, group: Group, step: int) -> int:
        """The last step that may train ``group``; one without a token will have its oldest from the version of now, or later."""
        assert self.threshold is not None
        return (step - 1 if group.oldest is None else group.oldest) + self.threshold

    def _unwanted(self, group: Group, step: int) -> str:
        if group.status is Status.FAILURE:
            return FAILED
        if self.threshold is not None and group.oldest is not None and (step - 1) - group.oldest > self.threshold - 1:
            return STALE
        return _unfit(group) if self.filter and group.settled and not worth_training(group.metric) else ""


def _too_few(ask: Ask, good: int, needed: int, issued: int, max_batches: int) -> RunFailed:
    return RunFailed(
        f"step {ask.step}: {good} of {needed} groups have answers that are judged differently after {issued} prompts "
        f"(algorithm.filter_groups.max_num_gen_batches = {max_batches})"
    )


def _unfit(group: Group) -> str:
    """Why the filter takes a group out: nothing came, or nothing that differs."""
    return ZERO_SPREAD if group.sessions else FAILED
