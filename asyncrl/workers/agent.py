"""A CPU process that owns prompt groups for the length of their lease: sessions, rewards, and the one put that ends them."""

import asyncio
import contextlib
import logging
from dataclasses import dataclass

from asyncrl.agents.chat import ChatTokenizer
from asyncrl.agents.columns import group_rows
from asyncrl.agents.group import GroupOutcome, run_group
from asyncrl.agents.loop import AgentLoop, Generate, SessionContext
from asyncrl.agents.loops import loop_named
from asyncrl.errors import ActorDied, ActorError, Fenced
from asyncrl.runtime.actor import Actor, endpoint
from asyncrl.runtime.curve import CONTROLLER
from asyncrl.runtime.messages import ActorAddress
from asyncrl.runtime.ref import ActorRef
from asyncrl.runtime.tasks import running
from asyncrl.trajectory import PartialGroup, PromptGroup, RewardItem, RewardResult, Status, Trajectory
from asyncrl.transfer_queue.client import Guard, TransferQueue
from asyncrl.transfer_queue.shard import QueueShard
from asyncrl.workers.engines import EngineClient, EngineRouter
from asyncrl.workers.fields import ROLLOUT
from asyncrl.workers.lockstep import Lockstep
from asyncrl.workers.overlong import Overlong, OverlongSessions
from asyncrl.workers.reward import RewardWorker
from asyncrl.workers.rollout import RolloutWorker
from asyncrl.workers.turns import GroupTurns

logger = logging.getLogger(__name__)

CANCEL_SECONDS = 5.0
"""How long ``cancel`` waits for sessions to end; an agent loop of somebody else's may take its time."""
ALONE = 2
"""How often an answer whose reward worker died is judged again, by itself. Once more than once, as another answer may have ended the
worker meanwhile; with the first time no more than the restarts that one worker has."""


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


@dataclass(frozen=True, slots=True)
class RunningGroup:
    """A group that has not settled."""

    turns: GroupTurns
    task: asyncio.Task[None]


class AgentWorker(Actor):
    """Runs prompt groups: ``pending`` to ``running``, then rows and terminal status in one guarded put.

    The marker ends with ``status``, ``failures``, ``oldest_version`` (of the trainable tokens, None without any) and ``metric``
    (what a filter looks at, of each session that has rows).
    """

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
        engine_patience: float = 300.0,
        overlong: Overlong | None = None,
    ) -> None:
        """``silence``: how long a reward worker may show no progress. ``engine_patience``: how long a session waits for an
        engine when none lives. Both in seconds."""
        self.tokenizer = ChatTokenizer(
            tokenizer, max_prompt_length=max_prompt_length, chat_template=chat_template, template_values=template_values
        )
        self._silence, self._engine_patience = silence, engine_patience
        self._overlong = overlong
        self._lockstep = Lockstep(self.context.system.waits) if lockstep else None
        self._router: EngineRouter | None = None
        self._rewards: list[ActorRef[RewardWorker]] = []
        self._next_reward = 0
        self._groups: dict[str, RunningGroup] = {}

    @endpoint(roles=(CONTROLLER,))
    async def connect(
        self,
        engines: list[ActorAddress],
        shards: list[ActorAddress],
        rewards: list[ActorAddress],
        directories: list[ActorAddress] | None = None,
    ) -> None:
        """Tell the worker where engines, shards (in slot order) and reward workers are, and who else knows where engines are
        after a restart."""
        system = self.context.system
        for directory in directories or ():
            await system.join(directory)
        self._queue = TransferQueue([system.ref(address, QueueShard) for address in shards])
        self._rewards = [system.ref(address, RewardWorker).watched(self._silence) for address in rewards]
        life = f"{self.context.name}.{system.identity.generation}"
        clients = [EngineClient(life, system.ref(address, RolloutWorker)) for address in engines]
        self._router = EngineRouter(clients, self._lockstep, system.waits, self._engine_patience)
        for number, client in enumerate(clients):
            self.context.background(client.follow, name=f"answers of engine {number}")

    @property
    def router(self) -> EngineRouter:
        """The way to the engines. Raises ActorError before ``connect``."""
        if self._router is None:
            raise ActorError(f"{self.context.name} was not connected to the engines")
        return self._router

    @endpoint(roles=(CONTROLLER,))
    async def run_groups(self, groups: list[PromptGroup]) -> None:
        """Run these groups to their ends; each has settled in the queue when it is over. A group that still runs under an
        earlier lease is ended first, as by ``cancel``.

        Raises ActorError before ``connect``: a life that begins anew knows nobody yet, and its groups are issued again.
        """
        router = self.router
        self._end([group.uid for group in groups])
        if self._lockstep is not None:
            self._lockstep.enter(sum(len(group.session_names) for group in groups))
        for group in groups:
            self._start(group, router)

    @endpoint(roles=(CONTROLLER,))
    async def cancel(self, uids: list[str]) -> None:
        """End these groups: their sessions stop, also at the engines, and nothing of them is put. Others are passed over."""
        tasks = self._end(uids)
        if not tasks:
            return
        with self.context.system.waits.waiting("sessions", f"the end of {len(tasks)} groups", CANCEL_SECONDS):
            _, stubborn = await asyncio.wait(tasks, timeout=CANCEL_SECONDS)
        for task in stubborn:
            logger.warning("%s was cancelled and has not ended within %g s", task.get_name(), CANCEL_SECONDS)

    @endpoint(roles=(CONTROLLER,))
    async def partials(self) -> list[PartialGroup]:
        """What has been sampled for the running groups, as far as engines have given it back: after a pause all of it.

        Nothing before ``connect``: a life that begins anew runs no group.
        """
        if self._router is None:
            return []
        await self._router.catch_up()
        return [group.turns.partial() for group in self._groups.values()]

    def _start(self, group: PromptGroup, router: EngineRouter) -> None:
        turns = GroupTurns(group, router)
        loop = CountedLoop(loop_named(group.agent_name), self._lockstep, len(group.session_names))
        task = self.context.crew.start(self._run_group, group, turns, loop, name=f"group {group.uid}")
        self._groups[group.uid] = RunningGroup(turns, task)

        def ended(_: asyncio.Task[None]) -> None:
            # Not in the task: one that is cancelled before its first step never runs.
            loop.close()
            if (latest := self._groups.get(group.uid)) is not None and latest.task is task:
                del self._groups[group.uid]

        task.add_done_callback(ended)

    def _end(self, uids: list[str]) -> list[asyncio.Task[None]]:
        tasks = [self._groups.pop(uid).task for uid in uids if uid in self._groups]
        for task in tasks:
            task.cancel()
        return tasks

    async def _run_group(self, group: PromptGroup, turns: GroupTurns, loop: CountedLoop) -> None:
        guard = Guard(group.uid, {"lease": group.lease})

        async def report() -> None:
            await self._report_start(group, turns, guard)

        try:
            await self._queue.kv_put(group.uid, group.partition_id, tag={"status": Status.RUNNING}, guard=guard)
            async with running(*([report] if group.report_start else [])):
                outcome = await self._outcome(group, turns.generate, loop)
            await self._finish(group, outcome, guard)
        except Fenced as error:
            logger.warning("group %s is no longer ours: %s", group.uid, error)

    async def _outcome(self, group: PromptGroup, generate: Generate, loop: AgentLoop) -> GroupOutcome:
        """Run the sessions and judge them, with the penalty for too long answers where there is one."""
        if self._overlong is None:
            return await run_group(group, loop, self._score, generate=generate, tokenizer=self.tokenizer)
        sessions = OverlongSessions(self._overlong, loop, self._score)
        return await run_group(group, sessions, sessions.score, generate=generate, tokenizer=self.tokenizer)

    async def _report_start(self, group: PromptGroup, turns: GroupTurns, guard: Guard) -> None:
        """Keep the marker of a running group up to date with its oldest version.

        consumes: the first tokens that engines tell of
        produces: ``oldest_version`` in the marker
        waits for: an older version than those before
        unblocked by: ``GroupTurns``
        """
        while True:
            await turns.news.wait()
            turns.news.clear()
            await self._queue.kv_put(group.uid, group.partition_id, tag={"oldest_version": turns.oldest}, guard=guard)

    async def _finish(self, group: PromptGroup, outcome: GroupOutcome, guard: Guard) -> None:
        """Rows and terminal status together; the marker goes last in the batch and carries no fields."""
        causes = [f"session {failure.session}: {failure.reason}" for failure in outcome.failures]
        marker = {
            "status": outcome.status,
            "failures": causes,
            "oldest_version": outcome.oldest_version,
            "metric": outcome.metric,
        }
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
        """Ask the next reward worker. When it dies, one of these answers may have ended it: each is then judged alone."""
        with contextlib.suppress(ActorDied):
            return await self._next_judge().call(RewardWorker.score, items)
        return [await self._score_alone(item) for item in items]

    async def _score_alone(self, item: RewardItem) -> RewardResult:
        """The result of one answer; an error for one under which each of ``ALONE`` workers died, or one worker so many times."""
        cause = ""
        for _ in range(ALONE):
            try:
                [result] = await self._next_judge().call(RewardWorker.score, [item])
            except ActorDied as error:
                cause = str(error)
            else:
                return result
        return RewardResult(error=f"its reward worker died each of {1 + ALONE} times that it judged this answer: {cause}")

    def _next_judge(self) -> ActorRef[RewardWorker]:
        self._next_reward += 1
        return self._rewards[self._next_reward % len(self._rewards)]
