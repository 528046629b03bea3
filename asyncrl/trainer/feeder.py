"""Turns prompts into issued prompt groups."""

from collections.abc import Sequence
from dataclasses import dataclass

from asyncrl.data.prompts import PromptRow
from asyncrl.runtime.ref import ActorRef
from asyncrl.trajectory import PromptGroup, SamplingParams, Status
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

    def group(self, uid: str, row: PromptRow, step: int, lease: int) -> PromptGroup:
        """The prompt group of one prompt."""
        return PromptGroup(
            uid=uid,
            partition_id=self.partition_id,
            prompt=row.prompt,
            data_source=row.data_source,
            ground_truth=row.ground_truth,
            extra_info=row.extra_info,
            sessions=self.sessions,
            sampling=self.sampling,
            seed=self.seed,
            lease=lease,
            step=step,
            agent_name=row.agent_name or self.agent_name,
            greedy_baseline=self.greedy_baseline,
            reward_components=list(self.reward_components),
        )


class Feeder:
    """Issues groups: a marker in the queue first, then the group to an agent worker, which owns it from there."""

    def __init__(self, queue: TransferQueue, agents: Sequence[ActorRef[AgentWorker]], settings: GroupSettings) -> None:
        self._queue = queue
        self.agents = agents
        self.settings = settings
        self._leases = 0

    async def issue(self, prompts: Sequence[tuple[str, PromptRow]], step: int) -> None:
        """Issue one group per (uid, row). Returns when the queue holds the markers and the agents accepted the groups."""
        groups = [self._group(uid, row, step) for uid, row in prompts]
        markers = [{"is_prompt": True, "status": Status.PENDING, "global_steps": step, "lease": group.lease} for group in groups]
        await self._queue.kv_batch_put([group.uid for group in groups], self.settings.partition_id, tags=markers, step=step)
        for position, agent in enumerate(self.agents):
            share = groups[position :: len(self.agents)]
            if share:
                await agent.tell(AgentWorker.run_groups, share)

    def _group(self, uid: str, row: PromptRow, step: int) -> PromptGroup:
        self._leases += 1
        return self.settings.group(uid, row, step, self._leases)
