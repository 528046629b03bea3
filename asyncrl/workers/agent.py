"""A CPU process that owns prompt groups for the length of their lease: sessions, rewards, and the one put that ends them."""

import logging

from asyncrl.agents.chat import ChatTokenizer
from asyncrl.agents.columns import group_rows
from asyncrl.agents.group import GroupOutcome, run_group
from asyncrl.agents.loop import AgentLoop, SessionContext
from asyncrl.agents.loops import AGENT_LOOPS
from asyncrl.errors import Fenced
from asyncrl.runtime.actor import Actor, endpoint
from asyncrl.runtime.curve import CONTROLLER
from asyncrl.runtime.messages import ActorAddress
from asyncrl.runtime.ref import ActorRef
from asyncrl.trajectory import PromptGroup, RewardItem, RewardResult, Status, Trajectory
from asyncrl.transfer_queue.client import Guard, TransferQueue
from asyncrl.transfer_queue.shard import QueueShard
from asyncrl.workers.engines import EngineClient, EngineRouter, Lockstep
from asyncrl.workers.fields import ROLLOUT
from asyncrl.workers.reward import RewardWorker
from asyncrl.workers.rollout import RolloutWorker

logger = logging.getLogger(__name__)


class CountedLoop:
    """The loop of one group; tells the lockstep, where there is one, as each of its sessions ends."""

    def __init__(self, loop: AgentLoop, lockstep: Lockstep | None, sessions: int) -> None:
        self._loop, self._lockstep, self._left = loop, lockstep, sessions

    async def run(self, session: SessionContext) -> list[Trajectory]:
        """One session of the loop."""
        try:
            return await self._loop.run(session)
        finally:
            self._leave(1)

    def close(self) -> None:
        """Count the sessions that never ran, or that failed before they did."""
        self._leave(self._left)

    def _leave(self, sessions: int) -> None:
        self._left -= sessions
        if self._lockstep is not None and sessions:
            self._lockstep.leave(sessions)


class AgentWorker(Actor):
    """Runs prompt groups: ``pending`` to ``running``, then rows and terminal status in one guarded put."""

    concurrency = 0
    process_role = "agent"

    def __init__(
        self,
        tokenizer: str,
        max_prompt_length: int,
        chat_template: str | None,
        template_values: dict[str, object],
        silence: float,
        lockstep: bool,
    ) -> None:
        self.tokenizer = ChatTokenizer(
            tokenizer, max_prompt_length=max_prompt_length, chat_template=chat_template, template_values=template_values
        )
        self._silence = silence
        self._lockstep = Lockstep() if lockstep else None
        self._rewards: list[ActorRef[RewardWorker]] = []
        self._next_reward = 0

    @endpoint(roles=(CONTROLLER,))
    async def connect(self, engines: list[ActorAddress], shards: list[ActorAddress], rewards: list[ActorAddress]) -> None:
        """Tell the worker where engines, shards (in slot order) and reward workers are."""
        system = self.context.system
        self._queue = TransferQueue([system.ref(address, QueueShard) for address in shards])
        self._rewards = [system.ref(address, RewardWorker).watched(self._silence) for address in rewards]
        clients = [EngineClient(self.context.name, system.ref(address, RolloutWorker)) for address in engines]
        self._router = EngineRouter(clients, self._lockstep)
        for number, client in enumerate(clients):
            self.context.background(client.send, name=f"requests to engine {number}")
            self.context.background(client.follow, name=f"answers of engine {number}")

    @endpoint(roles=(CONTROLLER,))
    async def run_groups(self, groups: list[PromptGroup]) -> None:
        """Run these groups to their ends. Returns when all of them have settled in the queue."""
        if self._lockstep is not None:
            self._lockstep.enter(sum(len(group.session_names) for group in groups))
        for group in groups:
            self.context.background(self._run_group, group, name=f"group {group.uid}")

    async def _run_group(self, group: PromptGroup) -> None:
        guard = Guard(group.uid, {"lease": group.lease})
        try:
            await self._queue.kv_put(group.uid, group.partition_id, tag={"status": Status.RUNNING}, guard=guard)
            loop = CountedLoop(AGENT_LOOPS[group.agent_name], self._lockstep, len(group.session_names))
            try:
                outcome = await run_group(group, loop, self._score, generate=self._router.generate, tokenizer=self.tokenizer)
            finally:
                loop.close()
            await self._finish(group, outcome, guard)
        except Fenced as error:
            logger.warning("group %s is no longer ours: %s", group.uid, error)

    async def _finish(self, group: PromptGroup, outcome: GroupOutcome, guard: Guard) -> None:
        """Rows and terminal status together; the marker goes last in the batch and carries no fields."""
        causes = [f"session {failure.session}: {failure.reason}" for failure in outcome.failures]
        marker = {"status": outcome.status, "failures": causes}
        rows = group_rows(group, outcome.rows)
        stage = ROLLOUT if group.reward_components else ROLLOUT.without("reward_components")
        stage.check_writes(tuple(rows.fields))
        version = max((tag["max_global_steps"] for tag in rows.tags), default=-1)
        await self._queue.kv_batch_put(
            rows.keys,
            group.partition_id,
            rows.fields,
            rows.tags,
            also_tags={group.uid: marker},
            guard=guard,
            step=group.step,
            version=version,
        )

    async def _score(self, items: list[RewardItem]) -> list[RewardResult]:
        worker = self._rewards[self._next_reward % len(self._rewards)]
        self._next_reward += 1
        return await worker.call(RewardWorker.score, items)
