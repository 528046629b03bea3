"""A simulated run of one mode: the shipped schedule, sampler, flow, feeder, replay buffer, ledger and queue in virtual time.

Only the agents are simulated: their sessions take drawn times, fail, are judged alike, and die with their worker. Training takes a
drawn time too, and the world keeps for itself what the flow must not get wrong: which version drew the oldest token of a group.
"""

import asyncio
import math
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from typing import Literal

from asyncrl.data.prompts import PromptRow
from asyncrl.errors import Fenced
from asyncrl.runtime import ActorRef
from asyncrl.runtime.actor import Actor, endpoint
from asyncrl.runtime.curve import CONTROLLER
from asyncrl.runtime.simulation import Simulation
from asyncrl.runtime.tasks import running
from asyncrl.trainer.feeder import Feeder, GroupSettings
from asyncrl.trainer.flow import PromptFlow
from asyncrl.trainer.ledger import Ledger
from asyncrl.trainer.replay_buffer import ReplayBuffer
from asyncrl.trainer.sampler import Ask, AsyncSampler, GroupFilter, Sampler, SyncSampler
from asyncrl.trainer.schedule import Schedule
from asyncrl.trajectory import PromptGroup, SamplingParams, Status
from asyncrl.transfer_queue.client import Guard, TransferQueue
from asyncrl.transfer_queue.shard import QueueShard
from asyncrl.workers.agent import AgentWorker

SHARDS = 2
LONG = 1000.0
"""Seconds within which no lease of a run ends that is longer."""
SESSIONS = 2
MODES = ("sync", "colocate_async", "separate_async")


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What one run is like."""

    seed: int
    schedule: Schedule
    sampler: Sampler
    threshold: int | None
    batch: int
    steps: int
    failing: float
    alike: float
    """Share of the groups whose answers are all judged the same."""
    deaths: float
    """Chance of a step that an agent worker dies in it."""
    lease: float
    agents: int
    good: Callable[[int], bool] | None = None
    """Which prompts, by their number, give a group that can be trained; None: as drawn."""
    otherwise: Literal["alike", "failed", "silent"] = "alike"
    """What becomes of the others: answers that are judged the same, no answer, or nothing until the lease ends."""
    most_batches: int = 0

    def becomes(self, uid: str) -> str:
        """``good``, or what becomes of this prompt instead; nothing where it is drawn."""
        if self.good is None:
            return ""
        return "good" if self.good(int(uid.split("p")[1])) else self.otherwise

    @classmethod
    def draw(cls, seed: int) -> "Plan":
        """The plan of a seed."""
        rng = Random(f"plan {seed}")
        kind = rng.choice(MODES)
        batch, filtered = rng.choice((4, 8)), rng.random() < 0.4
        threshold = rng.choice((None, 1, 2, 3, 8))
        strategy: Literal["drop", "wait"] = rng.choice(("drop", "wait"))
        ahead = rng.choice((0.5, 1.0, 2.0, 2.5))
        if strategy == "wait" and threshold is not None:
            ahead = min(ahead, threshold - 1.0)
        sampler: Sampler = AsyncSampler(threshold=threshold, strategy=strategy, filter=filtered)
        if kind == "sync":
            schedule = Schedule()
            rule = GroupFilter(rng.choice((1, 2))) if filtered else None
            sampler = SyncSampler(refill_failed=rng.random() < 0.5, filter=rule)
        elif kind == "colocate_async":
            schedule = Schedule(lookahead=ahead, training_window="pause", whole_groups=True)
        else:
            schedule = Schedule(lookahead=ahead, updates=rng.choice((1, 2, 4)), training_window="swap", whole_groups=True)
        return cls(
            seed=seed,
            schedule=schedule,
            sampler=sampler,
            threshold=None if kind == "sync" else threshold,
            batch=batch,
            steps=rng.randint(3, 8),
            failing=rng.choice((0.0, 0.05, 0.3)),
            alike=0.5 if filtered else 0.0,
            deaths=rng.choice((0.0, 0.3)),
            lease=rng.choice((3600.0, 20.0)),
            agents=rng.choice((1, 2, 3)),
        )


@dataclass(slots=True)
class World:
    """The state outside the flow: the version that engines serve, whether they generate, and what agents did."""

    plan: Plan
    rng: Random
    version: int = 0
    open: asyncio.Event = field(default_factory=asyncio.Event)
    shut: asyncio.Event = field(default_factory=asyncio.Event)
    oldest: dict[str, int] = field(default_factory=dict)
    """Version of the oldest token of the group as it was put last."""
    put: Counter[str] = field(default_factory=Counter)
    """Accepted ends of each group."""

    workers: "list[SimulatedAgent]" = field(default_factory=list)

    def resume(self) -> None:
        """Engines generate."""
        self.shut.clear()
        self.open.set()

    def pause(self) -> None:
        """Engines do not."""
        self.open.clear()
        self.shut.set()

    async def generate(self, seconds: float) -> None:
        """``seconds`` of generation, which stands still while the engines are paused."""
        clock = asyncio.get_running_loop().time
        while seconds > 0:
            await self.open.wait()
            began = clock()
            try:
                async with asyncio.timeout(seconds):
                    await self.shut.wait()
            except TimeoutError:
                return
            seconds -= clock() - began


class SimulatedAgent(Actor):
    """Answers for an AgentWorker: the same endpoints, sessions that only take time."""

    concurrency = 0

    def __init__(self, world: World, shards: list[ActorRef[QueueShard]]) -> None:
        self._world, self._queue = world, TransferQueue(shards)
        self._tasks: dict[str, asyncio.Task[None]] = {}
        world.workers.append(self)

    async def on_stop(self) -> None:
        await self.die()

    async def die(self) -> None:
        """Everything that runs is gone."""
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    @endpoint
    async def run_groups(self, groups: list[PromptGroup]) -> None:
        """As that of AgentWorker."""
        for group in groups:
            self._tasks[group.uid] = asyncio.ensure_future(self._run(group))

    @endpoint
    async def cancel(self, uids: list[str]) -> None:
        """As that of AgentWorker."""
        for uid in uids:
            if uid in self._tasks:
                self._tasks.pop(uid).cancel()

    async def _run(self, group: PromptGroup) -> None:
        world, rng = self._world, Random(f"{self._world.plan.seed} {group.uid} {group.lease}")
        guard = Guard(group.uid, {"lease": group.lease})
        try:
            await self._queue.kv_put(group.uid, "train", tag={"status": Status.RUNNING}, guard=guard)
            if world.plan.becomes(group.uid) == "silent":
                await asyncio.Event().wait()
            await world.generate(rng.uniform(0.0, 1.0))
            await world.open.wait()
            oldest = world.version
            if group.report_start:
                await self._queue.kv_put(group.uid, "train", tag={"oldest_version": oldest}, guard=guard)
            await world.generate(math.exp(rng.gauss(0.0, 1.0)) * (40.0 if rng.random() < 0.02 else 1.0))
            await self._finish(group, guard, oldest, rng)
        except Fenced:
            return

    async def _finish(self, group: PromptGroup, guard: Guard, oldest: int, rng: Random) -> None:
        alike = rng.random() < self._world.plan.alike
        failed = [number for number in range(group.sessions) if rng.random() < self._world.plan.failing]
        if becomes := self._world.plan.becomes(group.uid):
            alike, failed = becomes == "alike", list(range(group.sessions)) if becomes == "failed" else []
        scores = {number: 1.0 if alike else float(number) for number in range(group.sessions) if number not in failed}
        tags = [{"status": "success", "score": score, "trainable_len": 5, "response_len": 5, "seq_len": 7} for score in scores.values()]
        marker = {
            "status": Status.FAILURE if failed else Status.FINISHED,
            "failures": [f"session {number}: drawn" for number in failed],
            "oldest_version": oldest if scores else None,
            "metric": list(scores.values()),
        }
        keys = [f"{group.uid}_{number}_0" for number in scores]
        # Known to the world before the answer, which may be lost.
        self._world.oldest[group.uid] = oldest
        await self._queue.kv_batch_put(keys, "train", None, tags, also_tags={group.uid: marker}, guard=guard)
        self._world.put[group.uid] += 1


class Stream:
    """Prompts without end."""

    def __init__(self) -> None:
        self.issued = 0

    def take(self, count: int) -> list[tuple[str, PromptRow]]:
        """The next ones."""
        self.issued += count
        return [(f"s1e0p{self.issued - count + number}", self.row("")) for number in range(count)]

    def row(self, uid: str) -> PromptRow:
        """All are alike."""
        return PromptRow(prompt="?", data_source="", index=0)


@dataclass(slots=True)
class Result:
    """What a run left."""

    trained: list[list[str]]
    staleness: list[int]
    ledger: Ledger
    world: World
    said: list[str]
    rows_left: int


async def play(simulation: Simulation, plan: Plan) -> Result:
    """The whole run, as ``Trainer.run`` leads it."""
    world, said = World(plan, Random(f"world {plan.seed}")), list[str]()
    controller = simulation.system("controller", role=CONTROLLER)
    async with simulation.system("shards") as there, simulation.system("agents") as beside, controller as here:
        shards = [await there.spawn(QueueShard, slot, name=f"shard-{slot}") for slot in range(SHARDS)]
        seen = [beside.ref(shard.address, QueueShard) for shard in shards]
        spawned = [await beside.spawn(SimulatedAgent, world, seen, name=f"agent-{number}") for number in range(plan.agents)]
        agents = [here.ref(agent.address, AgentWorker) for agent in spawned]
        queue = TransferQueue([here.ref(shard.address, QueueShard) for shard in shards])
        replay = ReplayBuffer(queue, "train", said.append)
        settings = GroupSettings(
            "train", SESSIONS, SamplingParams(max_tokens=8), 1, "single_turn_agent", report_start=plan.threshold is not None
        )
        flow = PromptFlow(
            ledger=Ledger(),
            prompts=Stream(),
            feeder=Feeder(queue, agents, settings),
            replay=replay,
            sampler=plan.sampler,
            queue=queue,
            schedule=plan.schedule,
            host=here.host,
            say=said.append,
            batch=plan.batch,
            total_steps=plan.steps,
            lease_seconds=plan.lease,
            most_batches=plan.most_batches,
        )
        result = Result([], [], flow.ledger, world, said, 0)
        async with running(replay.run):
            world.resume()
            for step in range(1, plan.steps + 1):
                await _step(flow, queue, world, step, result)
            await flow.end(plan.steps)
            await asyncio.sleep(5.0)
            result.rows_left = sum(sum(stats.partitions.values()) for stats in await queue.stats())
    return result


async def _step(flow: PromptFlow, queue: TransferQueue, world: World, step: int, result: Result) -> None:
    plan, schedule = world.plan, world.plan.schedule
    await flow.submit(step)
    assert flow.ledger.counts()["in_flight"] <= int((1 + schedule.lookahead) * plan.batch)
    if world.rng.random() < plan.deaths:
        number = world.rng.randrange(len(world.workers))
        await asyncio.sleep(world.rng.uniform(0.0, 2.0))
        await world.workers[number].die()
        # As long as a new life takes: what was put before has been told by then.
        await asyncio.sleep(1.0)
        flow.worker_died(number, "its agent worker died")
    keys: list[str] = []
    for update in range(schedule.updates):
        count = plan.batch // schedule.updates
        taken = await flow.sample(Ask(step=step, count=count, batch=plan.batch, later=count * (schedule.updates - 1 - update)))
        rows = await queue.kv_list("train", {"status": "success"})
        result.trained.append(list(taken))
        result.staleness += [step - 1 - world.oldest[uid] for uid in taken]
        keys += [*taken, *[key for key in rows if key.rsplit("_", 2)[0] in taken]]
        if schedule.training_window != "swap":
            world.pause()
        await asyncio.sleep(world.rng.expovariate(1.0))
        flow.train(list(taken), step)
        if update < schedule.updates - 1:
            world.resume()
    world.version = step
    world.resume()
    await queue.kv_clear(keys, "train")
    _check_ledger(flow.ledger, result)


def _check_ledger(ledger: Ledger, result: Result) -> None:
    counts = ledger.counts()
    assert counts["trained"] + counts["dropped"] + counts["in_flight"] == counts["issued"]
    assert counts["trained"] == sum(len(uids) for uids in result.trained)


def check(result: Result) -> None:
    """What must hold of every run."""
    plan = result.world.plan
    trained = [uid for uids in result.trained for uid in uids]
    assert len(trained) == len(dict.fromkeys(trained)) == plan.batch * plan.steps
    assert result.ledger.counts()["in_flight"] == 0
    if plan.threshold is not None:
        assert max(result.staleness) <= plan.threshold - 1
    if not plan.schedule.whole_groups:
        assert max(result.staleness) == 0
    if plan.lease > LONG:
        assert max(result.world.put.values()) == 1, "a finished group was generated again"
    assert result.rows_left == 0, "rows or markers were left in the queue"
