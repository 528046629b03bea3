"""Turns prompts into issued prompt groups."""

import contextlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from asyncrl.data.prompts import PromptRow
from asyncrl.errors import ActorDied, Undeliverable
from asyncrl.runtime.ref import ActorRef
from asyncrl.trajectory import GREEDY_SESSION, Kept, PartialGroup, PromptGroup, SamplingParams, Status, TrajectoryKey
from asyncrl.transfer_queue.client import TransferQueue
from asyncrl.workers.agent import AgentWorker


@dataclass(frozen=True, slots=True)
class GroupSettings:
    """What every group of one partition has in common."""

    partition_id: str
    sessions: int
    sampling: SamplingParams
    seed: int
    agent_name: str
    greedy_baseline: bool = False
    reward_components: tuple[str, ...] = ()
    filter_metric: str = ""
    report_start: bool = False
    urgent: bool = False

    def group(self, issue: "Issue") -> PromptGroup:
        """The prompt group of one prompt."""
        row = issue.row
        return PromptGroup(
            uid=issue.uid,
            partition_id=self.partition_id,
            prompt=row.prompt,
            data_source=row.data_source,
            ground_truth=row.ground_truth,
            extra_info=row.extra_info,
            sessions=self.sessions,
            sampling=self.sampling,
            seed=self.seed,
            lease=issue.lease,
            step=issue.step,
            agent_name=row.agent_name or self.agent_name,
            greedy_baseline=self.greedy_baseline,
            reward_components=list(self.reward_components),
            filter_metric=self.filter_metric,
            report_start=self.report_start,
            urgent=self.urgent,
            kept=dict(issue.kept),
        )


@dataclass(frozen=True, slots=True)
class Issue:
    """One prompt as it is handed to an agent worker."""

    uid: str
    row: PromptRow
    step: int
    """The step that issued it first."""
    place: int
    """Its place in the order of issue, which also chooses the worker."""
    lease: int = 1
    """Counts the issues of this prompt."""
    kept: Mapping[str, Kept] = field(default_factory=dict)
    """By session, answers that an earlier attempt began."""


class Feeder:
    """Issues groups: a marker in the queue first, then the group to an agent worker, which owns it from there."""

    def __init__(self, queue: TransferQueue, agents: Sequence[ActorRef[AgentWorker]], settings: GroupSettings) -> None:
        self._queue = queue
        self.agents = agents
        self.settings = settings

    async def issue(self, issues: Sequence[Issue]) -> list[Issue]:
        """Issue one group each. Returns when the queue holds the markers and the agents accepted the groups.

        The result are those that no agent accepted, because theirs died.
        """
        again = [issue.uid for issue in issues if issue.lease > 1]
        partition, step = self.settings.partition_id, max((issue.step for issue in issues), default=-1)
        await self._queue.kv_batch_put([issue.uid for issue in issues], partition, tags=[_marker(issue) for issue in issues], step=step)
        if again:
            # Only now: under the lease of before, rows could still come.
            await self.clear_rows(again)
        refused: list[Issue] = []
        for agent, share in self._shares(issues):
            try:
                await agent.tell(AgentWorker.run_groups, [self.settings.group(each) for each in share])
            except ActorDied:
                refused += share
        return refused

    async def cancel(self, issues: Sequence[Issue]) -> None:
        """End the groups that still run; nothing of them is put."""
        for agent, share in self._shares(issues):
            with contextlib.suppress(ActorDied):
                await agent.tell(AgentWorker.cancel, [issue.uid for issue in share])

    async def partials(self) -> list[PartialGroup]:
        """The answers in generation, as far as engines have given them back."""
        found: list[PartialGroup] = []
        for agent in self.agents:
            # A worker that dies has nothing any more: its groups are issued again from their beginnings.
            with contextlib.suppress(ActorDied, Undeliverable):
                found += [group for group in await agent.call(AgentWorker.partials) if group.partition_id == self.settings.partition_id]
        return found

    async def clear_rows(self, uids: Iterable[str], retain: int | None = None) -> list[dict[str, Any]]:
        """Remove the rows of these groups, as ``kv_clear``; returns their tags, without those of greedy baselines."""
        gone, partition = frozenset(uids), self.settings.partition_id
        rows = await self._queue.kv_list(partition, {"status": "success"})
        keys = [key for key in rows if TrajectoryKey.parse(key).uid in gone]
        await self._queue.kv_clear(keys, partition, retain=retain)
        return [rows[key] for key in keys if TrajectoryKey.parse(key).session != GREEDY_SESSION]

    def _shares(self, issues: Sequence[Issue]) -> Iterator[tuple[ActorRef[AgentWorker], list[Issue]]]:
        for number, agent in enumerate(self.agents):
            share = [issue for issue in issues if self.worker_of(issue) == number]
            if share:
                yield agent, share

    def worker_of(self, issue: Issue) -> int:
        """The agent worker of a prompt; another one at each issue."""
        return (issue.place + issue.lease - 1) % len(self.agents) if self.agents else 0

    @staticmethod
    def numbered(prompts: Mapping[str, PromptRow], step: int) -> list[Issue]:
        """First issues of prompts that no ledger counts, such as those of a validation."""
        return [Issue(uid, row, step, place) for place, (uid, row) in enumerate(prompts.items())]


def _marker(issue: Issue) -> dict[str, Any]:
    # A prompt that is issued again has a marker already, and tags merge.
    fresh: dict[str, Any] = {"failures": [], "oldest_version": None, "metric": []}
    return {"is_prompt": True, "status": Status.PENDING, "global_steps": issue.step, "lease": issue.lease, **fresh}
