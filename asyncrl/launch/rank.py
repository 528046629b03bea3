"""One rank from the join to the end: models on the device thread, roles as actors, and on rank 0 the controller."""

import asyncio
import functools
import logging
import os
import traceback
from collections.abc import Sequence
from dataclasses import dataclass

import msgspec
from torch.distributed import PrefixStore  # type: ignore[attr-defined]

from asyncrl.config.load import Loaded, to_yaml
from asyncrl.config.placement import Placement
from asyncrl.config.plan import batch_arithmetic
from asyncrl.errors import AsyncRLError, CallFailed, ConfigError, DataError, RunFailed
from asyncrl.launch.checkpoint import newest_checkpoint
from asyncrl.launch.children import start_supervisor
from asyncrl.launch.cluster import RankAddresses, connect, shard_options, start_cpu_processes
from asyncrl.launch.control import RankControl
from asyncrl.launch.controller import show_curve, train
from asyncrl.launch.engines import gather_fleet, start_engines
from asyncrl.launch.environment import Place, machine_id
from asyncrl.launch.guard import EXIT_CONFIG, SIGNAL_EXITS, Guard, Interrupts
from asyncrl.launch.header import header_lines
from asyncrl.launch.inputs import open_prompts, open_tokenizer, total_steps
from asyncrl.launch.interface import Interface
from asyncrl.launch.job_key import role_of
from asyncrl.launch.links import Links
from asyncrl.launch.meeting import Board, Card, Meeting, Peer, meet, open_store
from asyncrl.launch.models import join_group, leave_group
from asyncrl.launch.nodes import Nodes
from asyncrl.launch.roles import start_roles
from asyncrl.launch.run_folder import log_to
from asyncrl.launch.session import Controller, Session, say
from asyncrl.launch.watching import open_rank_events, watch_rank, watching
from asyncrl.runtime.curve import Keyring
from asyncrl.runtime.directory import DIRECTORY
from asyncrl.runtime.group import ActorGroup
from asyncrl.runtime.host import RealHost
from asyncrl.runtime.messages import ActorAddress
from asyncrl.runtime.security import private_folder
from asyncrl.runtime.supervisor import ProcessDeath, SupervisorClient
from asyncrl.runtime.system import ActorSystem
from asyncrl.runtime.waits import WaitRegistry
from asyncrl.training.device_thread import DeviceThread


def told_of(death: ProcessDeath, guard: Guard, here: str) -> None:
    """A child has ended: the attempt ends with it, unless its supervisor starts it again."""
    if death.restarting:
        say(f"{describe_death(death, here)}; it is started again")
    else:
        guard.mourn(describe_death(death, here))


@dataclass(frozen=True, slots=True)
class RankJob:
    """What this rank was started with; the guard's folder, ``sockets`` and ``supervisor`` are rank 0's.

    On several nodes each rank has ``keys``, derived from the job's key, and an ``interface`` to listen at; ``token`` is then that
    of the keys, on one node it is rank 0's too.
    """

    loaded: Loaded
    place: Place
    host: RealHost
    guard: Guard
    sockets: str
    token: bytes
    keys: Keyring | None
    interface: Interface | None
    supervisor: SupervisorClient | None


async def run_rank(job: RankJob, controller: Controller = train) -> int:
    """Run this rank; return its exit code. ``controller`` is rank 0's. Whatever fails becomes the first cause."""
    thread, guard, place = DeviceThread(), job.guard, job.place
    board, met = await _meet(job, thread)
    guard.folder = met.folder
    log = log_to(met.folder, f"rank{place.rank}")
    interrupts = Interrupts(guard, saves=job.loaded.config.trainer.saves_on_exit, follows=place.rank != 0)
    guard.watch_parent()
    supervisor = _supervisor(job, met)
    if supervisor is not None:
        supervisor.attach_loop(lambda death: told_of(death, guard, place.here))
    system = ActorSystem.bind(
        f"rank{place.rank}",
        met.endpoint,
        host=job.host,
        attempt=met.attempt,
        token=met.token,
        role=role_of(place.rank),
        keys=job.keys,
        events=open_rank_events(job.host, met.folder, place, met.attempt, guard),
        watching=watching(met.folder, job.loaded.config.runtime.silence),
        shared_memory=job.loaded.config.runtime.shared_memory,
    )
    watch_rank(system, met.folder, guard)
    fail = functools.partial(_fail, guard, log, place.name_of(place.rank), system.waits)
    system.on_actor_failure = lambda cause, error: fail(error)
    rank = _Rank(job, system, thread, board, met, supervisor)
    try:
        await rank.link()
        guard.starting = False
        if rank.trains:
            await thread.run(join_group, PrefixStore(f"group/{place.attempt}", board.store), place.rank, rank.placement.trainers)
        await (rank.lead(controller) if place.rank == 0 else rank.follow())
        await rank.links.close()
        await system.close()
        if rank.trains:
            await thread.run(leave_group)
    except asyncio.CancelledError as error:
        if interrupts.caught is not None:
            guard.end(guard.stopped(interrupts.caught), SIGNAL_EXITS[interrupts.caught])
        fail(error)
        await guard.never()
    except Exception as error:
        # Nothing is closed first: the others would see this rank's end before they could read its cause.
        fail(error)
        await guard.never()
    thread.close()
    return 0


async def _meet(job: RankJob, thread: DeviceThread) -> tuple[Board, Meeting]:
    """Join the others at torchrun's store; another node that refuses to start ends this rank."""
    try:
        board = Board(await thread.run(open_store, job.place), job.place, job.host)
        return board, await meet(board, job.place, job.guard.folder, job.sockets, job.token, job.interface)
    except (RunFailed, OSError) as error:
        job.guard.end(str(error))


def _supervisor(job: RankJob, met: Meeting) -> SupervisorClient | None:
    """The supervisor of this node, on its first rank. Rank 0 has started its own; another node's waits for the run folder."""
    if job.place.local_rank != 0 or job.place.rank == 0:
        return job.supervisor
    job.guard.sockets = private_folder()
    return start_supervisor(job.host, job.place, met.folder, job.guard.sockets, met.token, job.interface)


def _fail(guard: Guard, log: logging.Logger, rank: str, waits: WaitRegistry, error: BaseException) -> None:
    """Log an error with its traceback, here and where it was raised, and all waits; let it end the attempt."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    remote = f"\nat the callee:\n{error.remote_traceback}" if isinstance(error, CallFailed) else ""
    waiting = "".join(f"\nwaiting {line}" for line in waits.describe())
    log.error("%s%s%s", "".join(traceback.format_exception(error)), remote, waiting)
    if isinstance(error, ConfigError | DataError):
        guard.fail(str(error), EXIT_CONFIG)
    else:
        guard.fail(describe_failure(error, rank))


class _Rank:
    """The parts of one rank, while the run lasts."""

    def __init__(
        self, job: RankJob, system: ActorSystem, thread: DeviceThread, board: Board, met: Meeting, supervisor: SupervisorClient | None
    ) -> None:
        self.job, self.system, self.thread = job, system, thread
        self.board, self.rendezvous, self.supervisor = board, board.rendezvous, supervisor
        self.guard, self.folder = job.guard, met.folder
        self.config = job.loaded.config
        self.placement = Placement.of(self.config, job.place.world_size, job.place.nodes)
        self.trains = job.place.rank in self.placement.trainers
        self.over = asyncio.Event()
        self.links = Links(system, job.guard)
        self.control: ActorAddress | None = None
        self.peers: dict[int, Peer] = {}
        if supervisor is not None:
            system.attach(supervisor)

    async def link(self) -> None:
        """Watch the ranks of this node by pidfd, those of other nodes by a connection each way between them and rank 0."""
        place = self.job.place
        control = await self.system.spawn(RankControl, self.guard, self.over, self.supervisor, name="control")
        self.control = control.address
        supervisor = 0 if self.supervisor is None else self.supervisor.pid
        self.board.tell_card(Card(os.getpid(), self.control, supervisor, machine=machine_id()))
        others = [rank for rank in range(place.world_size) if rank != place.rank]
        near = {rank: await self.board.peer(rank) for rank in others if place.node_of(rank) == place.node}
        self.guard.watch({peer.name: peer.pid for peer in near.values()})
        far = [rank for rank in others if rank not in near and 0 in (rank, place.rank)]
        self.peers = near | {rank: await self.board.peer(rank) for rank in far}
        if far:
            await self.links.open([self.peers[rank] for rank in far])
        await self._follow_other_nodes(far)

    async def _follow_other_nodes(self, far: Sequence[int]) -> None:
        """The first rank of each node hears of the children of the others through rank 0, and tells those of its own node."""
        if self.supervisor is None:
            return
        for rank in far:
            if rank % self.job.place.local_world_size == 0:
                await self.system.join(msgspec.structs.replace(self.peers[rank].control, actor=DIRECTORY))

    async def follow(self) -> None:
        """Serve the roles of this rank until rank 0 says that the run is over."""
        steps = total_steps(self.config, int(await self.rendezvous.wait("steps_per_epoch")))
        await self._publish(steps)
        await self.over.wait()

    async def lead(self, controller: Controller) -> None:
        """Start the CPU processes while the models load, connect everything, let the controller drive, end the others."""
        tokenizer = open_tokenizer(self.config)
        prompts, rows = open_prompts(self.config, tokenizer)
        self.rendezvous.set("steps_per_epoch", str(prompts.steps_per_epoch).encode())
        steps = total_steps(self.config, prompts.steps_per_epoch)
        found = newest_checkpoint(self.config, self.folder)
        options = shard_options(self.config, self.folder.path, found)
        nodes = self._nodes()
        processes, engines, _ = await asyncio.gather(
            start_cpu_processes(nodes, self.config, options),
            start_engines(nodes, self.config, self.placement),
            self._publish(steps),
        )
        ranks = [await self._addresses(rank) for rank in range(self.job.place.world_size)]
        fleet = await gather_fleet(self.system, self.config, self.placement, engines, ranks) if engines else None
        trainers = [rank.roles for rank in ranks if rank.roles is not None]
        cluster = await connect(self.system, self.config, processes, trainers, [engine.address for engine in engines], fleet)
        (self.folder.path / "config.yaml").write_text(to_yaml(self.job.loaded.resolved))
        for notice in self.job.loaded.notices:
            say(notice)
        header = header_lines(self.config, self.folder, processes, [rank.pid for rank in ranks], *self._supervisors())
        session = Session(self.job.loaded, self.job.host, self.folder, self.system, cluster, tokenizer, prompts, rows, steps, header, found)
        await controller(session)
        await self._finish(ranks)

    def _firsts(self) -> dict[int, Peer]:
        """The first rank of each other node."""
        return {node: self.peers[node * self.job.place.local_world_size] for node in range(1, self.job.place.nodes)}

    def _supervisors(self) -> list[int]:
        assert self.supervisor is not None
        return [self.supervisor.pid, *(peer.supervisor for peer in self._firsts().values())]

    def _nodes(self) -> Nodes:
        place = self.job.place
        controls = {node: self.system.ref(peer.control, RankControl) for node, peer in self._firsts().items()}
        plan = batch_arithmetic(self.config, place.world_size, place.nodes)
        return Nodes(self.system, controls, {process.name: process.node for process in plan.processes})

    async def _publish(self, steps: int) -> None:
        """Build this rank's models and roles, where it trains, and tell the others where they are."""
        place = self.job.place
        roles = await start_roles(self.system, self.thread, self.config, place, steps) if self.trains else None
        assert self.control is not None
        addresses = RankAddresses(pid=os.getpid(), control=self.control, roles=roles)
        self.rendezvous.set(f"rank/{place.rank}", msgspec.msgpack.encode(addresses))

    async def _addresses(self, rank: int) -> RankAddresses:
        return msgspec.msgpack.decode(await self.rendezvous.wait(f"rank/{rank}"), type=RankAddresses)

    async def _finish(self, ranks: list[RankAddresses]) -> None:
        """The run is over: stop the CPU processes while the ranks still answer them, let the ranks go, draw the curve."""
        controls = ActorGroup([self.system.ref(rank.control, RankControl) for rank in ranks])
        await controls.call_all(RankControl.release)
        await controls.call_all(RankControl.stop_children)
        await controls.call_all(RankControl.leave)
        show_curve(self.config, self.folder)


def describe_death(death: ProcessDeath, place: str = "") -> str:
    """A child's death in words: who, where, how, and its last lines."""
    lines = "".join(f"\n  | {line}" for line in death.last_lines)
    return f"{death.name}{place} (pid {death.pid}) died: {death.exit}{lines}"


def describe_failure(error: BaseException, rank: str) -> str:
    """The cause of a failed run in words; a call that failed elsewhere names its own rank."""
    if isinstance(error, CallFailed):
        return f"{error} (the traceback is in the log of {rank})"
    if isinstance(error, AsyncRLError):
        return f"{rank}: {type(error).__name__}: {error}"
    return f"{rank}: unexpected {type(error).__name__}: {error} (the traceback is in its log)"
