"""The processes and actors of a run, started and connected by rank 0."""

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, TypeVar

import msgspec

from asyncrl.config.places import resolve_path
from asyncrl.config.schema import Config
from asyncrl.config.schema.reward import Reward
from asyncrl.runtime.actor import Actor
from asyncrl.runtime.group import ActorGroup
from asyncrl.runtime.messages import ActorAddress
from asyncrl.runtime.ref import ActorRef
from asyncrl.runtime.system import ActorSystem
from asyncrl.runtime.tasks import all_of
from asyncrl.training.checkpoint import Checkpoint
from asyncrl.transfer_queue.client import TransferQueue
from asyncrl.transfer_queue.shard import QueueShard, ShardOptions
from asyncrl.workers.agent import AgentWorker
from asyncrl.workers.critic import CriticWorker
from asyncrl.workers.engine_process import EngineProcess, rollout_of
from asyncrl.workers.fleet import EngineFleet
from asyncrl.workers.overlong import Overlong
from asyncrl.workers.policy import PolicyWorker
from asyncrl.workers.rank import QueueWorker
from asyncrl.workers.reference import ReferenceWorker
from asyncrl.workers.reward import RewardWorker
from asyncrl.workers.rollout import RolloutWorker

REWARD_THREADS = 8
RESTARTS = 3
"""How often a shard, an agent worker or a reward worker may die within a minute."""
RESTART_WINDOW = 60.0
"""Seconds within which restarts count; the supervisor's."""
FROZEN_SECONDS = 10.0
"""How long past its timeout a reward may hold the interpreter lock of its worker until that is ended; see ``frozen_margin``."""
ENGINE_PATIENCE = EngineProcess.ready_within + 60.0
"""How long a session waits when no engine lives: what the next life of one may take to be ready, and a minute for word of death and
life. Less would fail sessions of an engine that comes back."""

A = TypeVar("A", bound=Actor)
Starter = Callable[[], Coroutine[Any, Any, ActorRef[A]]]
Join = Callable[[int], Coroutine[Any, Any, None]]


class Spawner(Protocol):
    """Starts an actor in a process of its own."""

    async def spawn(self, cls: type[A], *args: Any, name: str, process: str, restarts: int = 0, **kwargs: Any) -> ActorRef[A]:
        """As ``ActorSystem.spawn``."""
        ...


class RoleAddresses(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The roles of a rank that trains: ``rollout`` where its engine lives in it, ``sender`` where it sends weights to another."""

    policy: ActorAddress
    reference: ActorAddress | None
    critic: ActorAddress | None
    rollout: ActorAddress | None
    sender: ActorAddress | None = None


class RankAddresses(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What a rank publishes when its models are in place; no roles where it only lends its device to an engine."""

    pid: int
    control: ActorAddress
    roles: RoleAddresses | None


@dataclass(frozen=True, slots=True)
class CpuProcesses:
    """Everything that runs without torch, under the supervisor."""

    shards: list[ActorRef[QueueShard]]
    agents: list[ActorRef[AgentWorker]]
    rewards: list[ActorRef[RewardWorker]]


@dataclass(frozen=True, slots=True)
class Cluster:
    """All roles of the run."""

    queue: TransferQueue
    policy: ActorGroup[PolicyWorker]
    reference: ActorGroup[ReferenceWorker] | None
    critic: ActorGroup[CriticWorker] | None
    rollout: ActorGroup[RolloutWorker]
    agents: list[ActorRef[AgentWorker]]
    join: Join
    """Tells an agent worker, by its number, where the others are; a life that begins anew does not know."""
    fleet: ActorRef[EngineFleet] | None = None
    """Who brings weights to the engines that are processes of their own."""


def overlong(reward: Reward) -> Overlong | None:
    """The penalty for too long answers, where it is switched on."""
    buffer = reward.reward_kwargs.overlong_buffer_cfg
    if not buffer.enable:
        return None
    return Overlong(limit=reward.reward_kwargs.limit, buffer=buffer.len, factor=buffer.penalty_factor, log=buffer.log)


def shard_options(config: Config, run_folder: Path, found: Checkpoint | None) -> ShardOptions:
    """How the shards keep the rows. Where they keep a journal, another attempt begins with the rows of the one before.

    The folder is named after the number of shards: a row lies where that number puts it.
    """
    queue = config.transfer_queue
    folder = run_folder / "queue" if queue.journal_folder is None else Path(resolve_path(queue.journal_folder))
    return ShardOptions(
        budget_bytes=int(queue.budget_gb * 1e9),
        journal=config.journal,
        journal_folder=str(folder / f"of{queue.shards}"),
        resume_step=0 if found is None else found.step,
        restore="" if found is None else found.queue(queue.shards),
    )


async def start_cpu_processes(system: Spawner, config: Config, options: ShardOptions) -> CpuProcesses:
    """Start shards, agent workers and reward workers at once; returns when all are ready.

    One that dies is started again, on its node; a shard only where it keeps a journal: what the ranks read would be gone.
    """
    shard_restarts = 0 if options.journal == "off" else RESTARTS
    reward, rollout, model = config.reward, config.actor_rollout_ref.rollout, config.actor_rollout_ref.model
    function = reward.custom_reward_function
    margin, lockstep = frozen_margin(reward.timeout), rollout.full_determinism
    # A worker that does not run any more is ended before its callers give it up.
    silence = max(config.runtime.silence, reward.timeout + 2 * margin)

    def shard(slot: int) -> Starter[QueueShard]:
        name = f"shard-{slot}"
        return lambda: system.spawn(QueueShard, slot, options, name=name, process=name, restarts=shard_restarts)

    def agent(number: int) -> Starter[AgentWorker]:
        name = f"agent-{number}"
        folder = str(resolve_path(model.tokenizer_path or model.path))
        values = config.data.apply_chat_template_kwargs
        limit = config.data.max_prompt_length
        template = model.custom_chat_template
        longest = overlong(reward)
        return lambda: system.spawn(
            AgentWorker,
            folder,
            limit,
            template,
            values,
            silence,
            lockstep,
            ENGINE_PATIENCE,
            overlong=longest,
            name=name,
            process=name,
            restarts=RESTARTS,
        )

    def judge(number: int) -> Starter[RewardWorker]:
        name = f"reward-{number}"
        path = None if function.path is None else str(resolve_path(function.path))
        kwargs = function.reward_kwargs
        inline = config.debug == "inline"
        bounds = (REWARD_THREADS, reward.timeout, inline, None if inline else margin)
        return lambda: system.spawn(RewardWorker, path, function.name, kwargs, *bounds, name=name, process=name, restarts=RESTARTS)

    shards = all_of([shard(slot) for slot in range(config.transfer_queue.shards)])
    agents = all_of([agent(number) for number in range(rollout.agent.num_workers)])
    rewards = all_of([judge(number) for number in range(reward.num_workers)])
    return CpuProcesses(*await asyncio.gather(shards, agents, rewards))


def frozen_margin(timeout: float) -> float:
    """Seconds past ``timeout`` after which a reward worker that stands still is ended.

    Never more than ``RESTARTS`` such ends fall into a minute, so that rewards which freeze their worker do not end the run.
    """
    return max(FROZEN_SECONDS, RESTART_WINDOW / RESTARTS - timeout)


async def connect(
    system: ActorSystem,
    config: Config,
    processes: CpuProcesses,
    ranks: Sequence[RoleAddresses],
    separate: Sequence[ActorAddress] = (),
    fleet: ActorRef[EngineFleet] | None = None,
) -> Cluster:
    """Tell every role where the others are, and gather the ranks' roles into groups.

    ``separate`` are the engines where they are processes of their own, with their ``fleet``.
    """
    silence = config.runtime.silence
    policy = ActorGroup([system.ref(rank.policy, PolicyWorker) for rank in ranks]).watched(silence)
    engines = [rollout_of(engine) for engine in separate] or [rank.rollout for rank in ranks if rank.rollout is not None]
    rollout = ActorGroup([system.ref(engine, RolloutWorker) for engine in engines]).watched(silence)
    reference = _group(system, ReferenceWorker, [rank.reference for rank in ranks], silence)
    critic = _group(system, CriticWorker, [rank.critic for rank in ranks], silence)
    shards = [shard.address for shard in processes.shards]
    rewards = [reward.address for reward in processes.rewards]
    await policy.call_all(QueueWorker.connect, shards, system.directory)
    if reference is not None:
        await reference.call_all(QueueWorker.connect, shards, system.directory)
    if critic is not None:
        await critic.call_all(QueueWorker.connect, shards, system.directory)

    async def join(number: int) -> None:
        await processes.agents[number].call(AgentWorker.connect, engines, shards, rewards)

    for number in range(len(processes.agents)):
        await join(number)
    return Cluster(
        queue=TransferQueue(processes.shards),
        policy=policy,
        reference=reference,
        critic=critic,
        rollout=rollout,
        agents=processes.agents,
        fleet=fleet,
        join=join,
    )


def _group(system: ActorSystem, cls: type[A], addresses: Sequence[ActorAddress | None], silence: float) -> ActorGroup[A] | None:
    """The members of a role, watched; None where no rank has it."""
    present = [address for address in addresses if address is not None]
    return ActorGroup([system.ref(address, cls) for address in present]).watched(silence) if present else None
