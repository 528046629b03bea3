"""A validation ends, whatever becomes of agent workers, markers and answers; in virtual time, over the shipped feeder and queue.

Each answer is worth the number of the issue that gave it, so that a metric tells which issue was counted.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any

import msgspec
import pytest

from asyncrl.data.prompts import PromptRow
from asyncrl.errors import Fenced
from asyncrl.runtime import ActorRef
from asyncrl.runtime.actor import Actor, endpoint
from asyncrl.runtime.curve import CONTROLLER
from asyncrl.runtime.simulation import Simulation
from asyncrl.runtime.tasks import running
from asyncrl.tensors.wire import Column
from asyncrl.trainer.feeder import Feeder, GroupSettings
from asyncrl.trainer.replay_buffer import ReplayBuffer
from asyncrl.trainer.validation import Validation
from asyncrl.trajectory import PromptGroup, SamplingParams, Status
from asyncrl.transfer_queue.client import Guard, Snapshot, TransferQueue
from asyncrl.transfer_queue.keys import placement
from asyncrl.transfer_queue.shard import QueueShard
from asyncrl.workers.agent import AgentWorker

SHARDS, AGENTS, ROWS = 2, 2, 6
LEASE = 20.0
NEVER = 1000.0
"""Seconds of an answer that does not come."""
CORE = "val-core/any/reward/mean@1"

Takes = Callable[[PromptGroup], float]


@dataclass(slots=True)
class World:
    """What the agents are like, and what they saw."""

    takes: Takes
    deaf: bool = False
    """Whether they go on with a group that was cancelled, as one does that has not heard of it."""
    asked: list[PromptGroup] = field(default_factory=list)
    fenced: list[tuple[str, int]] = field(default_factory=list)
    workers: "list[JudgingAgent]" = field(default_factory=list)


class JudgingAgent(Actor):
    """Answers for an AgentWorker: one row a session, after the seconds that the world says."""

    concurrency = 0

    def __init__(self, world: World, shards: list[ActorRef[QueueShard]]) -> None:
        self._world, self._queue = world, TransferQueue(shards)
        self._tasks: dict[tuple[str, int], asyncio.Task[None]] = {}
        world.workers.append(self)

    async def on_stop(self) -> None:
        await self.die()

    async def die(self) -> None:
        """Everything that runs is gone."""
        for task in self._tasks.values():
            task.cancel()
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)

    @endpoint
    async def run_groups(self, groups: list[PromptGroup]) -> None:
        """As that of AgentWorker."""
        self._world.asked += groups
        for group in groups:
            self._tasks[group.uid, group.lease] = asyncio.ensure_future(self._run(group))

    @endpoint
    async def cancel(self, uids: list[str]) -> None:
        """As that of AgentWorker."""
        for (uid, _), task in self._tasks.items():
            if uid in uids and not self._world.deaf:
                task.cancel()

    async def _run(self, group: PromptGroup) -> None:
        guard, partition = Guard(group.uid, {"lease": group.lease}), group.partition_id
        keys = [f"{group.uid}_{session}_0" for session in range(group.sessions)]
        tags = [
            {"status": "success", "uid": group.uid, "session": str(session), "index": 0, "score": float(group.lease)}
            for session in range(group.sessions)
        ]
        fields = {"reward_extra_info": Column.objects([{} for _ in keys])}
        marker = {"status": Status.FINISHED, "failures": [], "oldest_version": 0, "metric": []}
        try:
            await self._queue.kv_put(group.uid, partition, tag={"status": Status.RUNNING}, guard=guard)
            await asyncio.sleep(self._world.takes(group))
            await self._queue.kv_batch_put(keys, partition, fields, tags, also_tags={group.uid: marker}, guard=guard)
        except Fenced:
            self._world.fenced.append((group.uid, group.lease))


@dataclass(slots=True)
class Room:
    """What a test drives."""

    simulation: Simulation
    world: World
    queue: TransferQueue
    replay: ReplayBuffer
    validation: Validation
    said: list[str]

    async def left(self) -> list[str]:
        """What is in the partition a long time after."""
        await asyncio.sleep(2 * NEVER)
        return list(await self.queue.kv_list("val"))

    async def running(self, groups: int) -> None:
        """As soon as so many groups run."""
        running: dict[str, None] = {}
        async with contextlib.aclosing(self.queue.watch("val", {"is_prompt": True})) as events:
            async for event in events:
                running |= {uid: None for uid, tag in event.rows.items() if tag is not None and tag["status"] == Status.RUNNING}
                if len(running) == groups:
                    return


Meanwhile = Callable[[Room], Coroutine[Any, Any, None]]


@contextlib.asynccontextmanager
async def validating(simulation: Simulation, world: World) -> AsyncIterator[Room]:
    said: list[str] = []
    async with contextlib.AsyncExitStack() as stack:
        there = await stack.enter_async_context(simulation.system("shards"))
        beside = [await stack.enter_async_context(simulation.system(f"agent-{number}")) for number in range(AGENTS)]
        here = await stack.enter_async_context(simulation.system("controller", role=CONTROLLER))
        shards = [await there.spawn(QueueShard, slot, name=f"shard-{slot}") for slot in range(SHARDS)]
        agents: list[ActorRef[AgentWorker]] = []
        for system in beside:
            seen = [system.ref(shard.address, QueueShard) for shard in shards]
            agents.append(here.ref((await system.spawn(JudgingAgent, world, seen, name="agent")).address, AgentWorker))
        queue = TransferQueue([here.ref(shard.address, QueueShard) for shard in shards])
        replay = ReplayBuffer(queue, "val", said.append)
        settings = GroupSettings("val", 1, SamplingParams(max_tokens=8), 1, "single_turn_agent", urgent=True)
        rows = [PromptRow(prompt="?", data_source="any", index=number) for number in range(ROWS)]
        validation = Validation(
            queue,
            Feeder(queue, agents, settings),
            replay,
            rows,
            sessions=1,
            seed=1,
            batch_size=None,
            host=here.host,
            say=said.append,
            lease_seconds=LEASE,
        )
        await stack.enter_async_context(running(replay.run))
        yield Room(simulation, world, queue, replay, validation, said)


def play(world: World, meanwhile: Meanwhile | None = None) -> tuple[dict[str, float], Room, float]:
    """One validation; its numbers, and the virtual seconds that it took."""
    simulation = Simulation(1)

    async def main() -> tuple[dict[str, float], Room, float]:
        async with validating(simulation, world) as room:
            began = asyncio.get_running_loop().time()
            async with asyncio.TaskGroup() as group:
                if meanwhile is not None:
                    group.create_task(meanwhile(room))
                numbers = await room.validation.run(3)
            seconds = asyncio.get_running_loop().time() - began
            assert await room.left() == []
            return numbers, room, seconds

    return simulation.run(main)


def issues(world: World) -> dict[str, list[int]]:
    """The leases under which each prompt was issued."""
    found: dict[str, list[int]] = {}
    for group in world.asked:
        found.setdefault(group.uid, []).append(group.lease)
    return found


def check_alike(world: World) -> None:
    """Every issue of a prompt asks for the same, at once and before all others."""
    first: dict[str, PromptGroup] = {}
    for group in world.asked:
        assert msgspec.structs.replace(group, lease=1) == first.setdefault(group.uid, group)
        assert group.urgent


def test_a_validation_that_nobody_disturbs_issues_every_prompt_once() -> None:
    numbers, room, seconds = play(World(lambda group: 2.0))
    assert numbers[CORE] == 1.0
    assert list(issues(room.world).values()) == [[1]] * ROWS
    assert seconds < 3.0


def test_what_a_worker_held_that_died_is_issued_again_to_another() -> None:
    async def kill(room: Room) -> None:
        await room.running(ROWS)
        await room.world.workers[0].die()
        room.validation.worker_died(0, "agent-0 died")

    numbers, room, seconds = play(World(lambda group: 2.0), kill)
    # Three of the six were its own, and count by their second issue.
    assert numbers[CORE] == 1.5
    assert issues(room.world) == {f"s1v3p{place}": [1, 2] if place % AGENTS == 0 else [1] for place in range(ROWS)}
    check_alike(room.world)
    assert seconds < 6.0


def test_what_a_worker_does_not_accept_goes_to_another() -> None:
    simulation = Simulation(1)
    world = World(lambda group: 2.0)

    async def main() -> dict[str, float]:
        async with validating(simulation, world) as room:
            await simulation.crash("agent-0")
            return await room.validation.run(3)

    assert simulation.run(main)[CORE] == 1.5
    assert list(issues(world).values()) == [[1]] * 3 + [[2]] * 3


def test_a_group_whose_marker_went_with_a_shard_is_issued_again() -> None:
    async def lose(room: Room) -> None:
        await room.running(ROWS)
        lost = [uid for uid in issues(room.world) if placement(uid, SHARDS) == 0]
        await room.queue.kv_clear(lost, "val")
        room.replay.hear(Snapshot(slot=0, incarnation="second", seq=0, rows={}, lost="first"))

    numbers, room, _ = play(World(lambda group: 2.0), lose)
    again = {uid: [1, 2] if placement(uid, SHARDS) == 0 else [1] for uid in issues(room.world)}
    assert issues(room.world) == again
    assert numbers[CORE] == pytest.approx(sum(len(leases) for leases in again.values()) / ROWS)
    check_alike(room.world)


def test_the_rows_of_an_earlier_issue_are_refused_when_they_come_late() -> None:
    def late(group: PromptGroup) -> float:
        return 2.0 if not group.uid.endswith("p0") else LEASE + 5.0 if group.lease == 1 else 15.0

    numbers, room, seconds = play(World(late, deaf=True))
    uid = "s1v3p0"
    assert issues(room.world)[uid] == [1, 2]
    assert room.world.fenced == [(uid, 1)]
    assert numbers[CORE] == (ROWS - 1 + 2) / ROWS
    assert LEASE + 15.0 <= seconds < LEASE + 17.0


def test_a_prompt_that_was_issued_three_times_counts_as_failed_and_is_named() -> None:
    def stuck(group: PromptGroup) -> float:
        return NEVER if group.uid.endswith("p4") else 2.0

    numbers, room, seconds = play(World(stuck, deaf=True))
    uid = "s1v3p4"
    assert issues(room.world)[uid] == [1, 2, 3]
    assert numbers[CORE] == (ROWS - 1) / ROWS
    cause = f"it was issued 3 times, the last time its lease of {LEASE:g} s ran out"
    assert [line for line in room.said if not line.startswith("still waiting")] == [f"validation prompt {uid} counts as failed: {cause}"]
    assert room.world.fenced == [(uid, 1), (uid, 2), (uid, 3)]
    assert 3 * LEASE <= seconds < 3 * LEASE + 3.0


def test_a_worker_that_dies_between_validations_has_nothing_of_them() -> None:
    simulation = Simulation(1)
    world = World(lambda group: 2.0)

    async def main() -> list[dict[str, float]]:
        async with validating(simulation, world) as room:
            first = await room.validation.run(3)
            room.validation.worker_died(0, "agent-0 died")
            return [first, await room.validation.run(4)]

    assert [numbers[CORE] for numbers in simulation.run(main)] == [1.0, 1.0]
    assert list(issues(world).values()) == [[1]] * 2 * ROWS
