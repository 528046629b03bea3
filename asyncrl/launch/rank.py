"""One rank from the join to the end: models on the device thread, roles as actors, and on rank 0 the controller."""

import asyncio
import functools
import hashlib
import logging
import os
import traceback
from dataclasses import dataclass
from pathlib import Path

import msgspec
from torch.distributed import PrefixStore, Store, rendezvous  # type: ignore[attr-defined]

from asyncrl.config.load import Loaded, to_yaml
from asyncrl.errors import AsyncRLError, CallFailed, ConfigError, DataError
from asyncrl.launch.cluster import RankAddresses, connect, start_cpu_processes
from asyncrl.launch.controller import train
from asyncrl.launch.environment import Place
from asyncrl.launch.guard import EXIT_CONFIG, SIGNAL_EXITS, Guard, Interrupts
from asyncrl.launch.header import header_lines
from asyncrl.launch.inputs import open_prompts, open_tokenizer, total_steps
from asyncrl.launch.models import Models, build_models, device_of, join_group, leave_group, policy_settings, reference_micro
from asyncrl.launch.run_folder import RunFolder, log_to
from asyncrl.launch.session import Controller, Session, say
from asyncrl.launch.store import StoreRendezvous
from asyncrl.observe.curve import draw_curve
from asyncrl.runtime.actor import Actor, endpoint
from asyncrl.runtime.group import ActorGroup
from asyncrl.runtime.host import RealHost
from asyncrl.runtime.messages import ActorAddress
from asyncrl.runtime.supervisor import ProcessDeath, SupervisorClient
from asyncrl.runtime.system import ActorSystem
from asyncrl.training.device_thread import DeviceThread
from asyncrl.weight_sync.in_place import InPlaceSync
from asyncrl.workers.policy import PolicyWorker
from asyncrl.workers.rank import Device
from asyncrl.workers.reference import ReferenceWorker
from asyncrl.workers.rollout import RolloutWorker


@dataclass(frozen=True, slots=True)
class RankJob:
    """What this rank was started with; the guard's folder, ``sockets``, ``token`` and ``supervisor`` are rank 0's."""

    loaded: Loaded
    place: Place
    host: RealHost
    guard: Guard
    sockets: str
    token: bytes
    supervisor: SupervisorClient | None


class JobInfo(msgspec.Struct, frozen=True):
    """What rank 0 tells the others. The folder of sockets holds the token, readable by this user alone."""

    run_folder: str
    sockets: str


class RankControl(Actor):
    """Lets rank 0 say that the run is over: first to all that nobody's end is a death any more, then that they may go."""

    def __init__(self, guard: Guard, over: asyncio.Event) -> None:
        self._guard, self._over = guard, over

    @endpoint
    async def release(self) -> None:
        """The other ranks will leave; stop watching them."""
        self._guard.release()

    @endpoint
    async def leave(self) -> None:
        """The run is over; the rank may go."""
        self._over.set()


async def run_rank(job: RankJob, controller: Controller = train) -> int:
    """Run this rank; return its exit code. ``controller`` is rank 0's. Whatever fails becomes the first cause."""
    thread, guard = DeviceThread(), job.guard
    store = await thread.run(_open_store, job.place)
    bulletin = StoreRendezvous(PrefixStore(f"asyncrl/{job.place.attempt}", store), job.host)
    folder, sockets, token = await _meet(job, bulletin)
    guard.folder = folder
    log = log_to(folder, f"rank{job.place.rank}")
    interrupts = Interrupts(guard)
    guard.watch_parent()
    if job.supervisor is not None:
        job.supervisor.attach_loop(lambda death: guard.end(describe_death(death)))
    fail = functools.partial(_fail, guard, log, job.place.rank)
    endpoint = f"ipc://{sockets}/rank{job.place.rank}.sock"
    system = ActorSystem.bind(f"rank{job.place.rank}", endpoint, host=job.host, attempt=attempt_nonce(job.place, token), token=token)
    system.on_actor_failure = lambda cause, error: fail(error)
    try:
        guard.watch(await _peers(job.place, bulletin))
        guard.starting = False
        await thread.run(join_group, PrefixStore(f"group/{job.place.attempt}", store), job.place)
        rank = _Rank(job, system, thread, bulletin, guard, folder)
        await (rank.lead(controller) if job.place.rank == 0 else rank.follow())
        await system.close()
        await thread.run(leave_group)
    except asyncio.CancelledError as error:
        if interrupts.caught is not None:
            guard.end(f"stopped by {interrupts.caught.name}", SIGNAL_EXITS[interrupts.caught])
        fail(error)
        await guard.never()
    except Exception as error:
        # Nothing is closed first: the others would see this rank's end before they could read its cause.
        fail(error)
        await guard.never()
    thread.close()
    return 0


def _fail(guard: Guard, log: logging.Logger, rank: int, error: BaseException) -> None:
    """Log an error with its traceback, here and where it was raised, and let it end the attempt."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    remote = f"\nat the callee:\n{error.remote_traceback}" if isinstance(error, CallFailed) else ""
    log.error("%s%s", "".join(traceback.format_exception(error)), remote)
    if isinstance(error, ConfigError | DataError):
        guard.fail(str(error), EXIT_CONFIG)
    else:
        guard.fail(describe_failure(error, rank))


class _Rank:
    """The parts of one rank, while the run lasts."""

    def __init__(
        self, job: RankJob, system: ActorSystem, thread: DeviceThread, rendezvous: StoreRendezvous, guard: Guard, folder: RunFolder
    ) -> None:
        self.job, self.system, self.thread = job, system, thread
        self.rendezvous, self.guard, self.folder = rendezvous, guard, folder
        self.config = job.loaded.config
        self.over = asyncio.Event()

    async def follow(self) -> None:
        """Serve the roles of this rank until rank 0 says that the run is over."""
        steps = total_steps(self.config, int(await self.rendezvous.wait("steps_per_epoch")))
        await self._publish(steps)
        await self.over.wait()

    async def lead(self, controller: Controller) -> None:
        """Start the CPU processes while the models load, connect everything, let the controller drive, end the others."""
        supervisor = self.job.supervisor
        assert supervisor is not None
        self.system.attach(supervisor)
        tokenizer = open_tokenizer(self.config)
        prompts, rows = open_prompts(self.config, tokenizer)
        self.rendezvous.set("steps_per_epoch", str(prompts.steps_per_epoch).encode())
        steps = total_steps(self.config, prompts.steps_per_epoch)
        processes, _ = await asyncio.gather(start_cpu_processes(self.system, self.config), self._publish(steps))
        ranks = [await self._addresses(rank) for rank in range(self.job.place.world_size)]
        cluster = await connect(self.system, self.config, processes, ranks)
        (self.folder.path / "config.yaml").write_text(to_yaml(self.job.loaded.resolved))
        for notice in self.job.loaded.notices:
            say(notice)
        header = header_lines(self.config, self.folder, processes, [rank.pid for rank in ranks], supervisor.pid)
        await controller(Session(self.job.loaded, self.job.host, self.folder, cluster, tokenizer, prompts, rows, steps, header))
        await self._finish(ranks, supervisor)

    async def _publish(self, steps: int) -> None:
        """Build this rank's models and roles, and tell the others where they are."""
        device = device_of(self.config, self.job.place)
        models = await self.thread.run(build_models, self.config, device, steps)
        rank = self.job.place.rank
        shared = Device(self.thread, models.pad_token_id)
        control = await self.system.spawn(RankControl, self.guard, self.over, name="control")
        rollout = await self.system.spawn(RolloutWorker, self.thread, models.rollout, name="rollout")
        sync = InPlaceSync(models.rollout, dtype=next(models.rollout.model.parameters()).dtype)
        policy = await self.system.spawn(PolicyWorker, shared, models.policy, sync, policy_settings(self.config), name="policy")
        reference = await self._reference(shared, models)
        addresses = RankAddresses(os.getpid(), control.address, policy.address, reference, rollout.address)
        self.rendezvous.set(f"rank/{rank}", msgspec.msgpack.encode(addresses))

    async def _reference(self, device: Device, models: Models) -> ActorAddress | None:
        if models.reference is None:
            return None
        temperature = self.config.actor_rollout_ref.rollout.temperature
        micro = reference_micro(self.config)
        reference = await self.system.spawn(ReferenceWorker, device, models.reference, temperature, micro, name="reference")
        return reference.address

    async def _addresses(self, rank: int) -> RankAddresses:
        return msgspec.msgpack.decode(await self.rendezvous.wait(f"rank/{rank}"), type=RankAddresses)

    async def _finish(self, ranks: list[RankAddresses], supervisor: SupervisorClient) -> None:
        """The run is over: stop the CPU processes while the ranks still answer them, let the ranks go, draw the curve."""
        controls = ActorGroup([self.system.ref(rank.control, RankControl) for rank in ranks])
        await controls.call_all(RankControl.release)
        await supervisor.stop()
        await controls.call_all(RankControl.leave)
        if (self.folder.path / "metrics.jsonl").exists():
            trainer = self.config.trainer
            say(
                f"learning curve: {draw_curve(self.folder.path, f'{trainer.project_name}: {trainer.experiment_name}, seed {trainer.seed}')}"
            )


def describe_death(death: ProcessDeath) -> str:
    """A child's death in words: who, how, and its last lines."""
    lines = "".join(f"\n  | {line}" for line in death.last_lines)
    return f"{death.name} (pid {death.pid}) died: {death.exit}{lines}"


def describe_failure(error: BaseException, rank: int) -> str:
    """The cause of a failed run in words; a call that failed elsewhere names its own rank."""
    if isinstance(error, CallFailed):
        return f"{error} (the traceback is in the log of rank {rank})"
    if isinstance(error, AsyncRLError):
        return f"rank {rank}: {type(error).__name__}: {error}"
    return f"rank {rank}: unexpected {type(error).__name__}: {error} (the traceback is in its log)"


def _open_store(place: Place) -> Store:
    store: Store = next(rendezvous("env://", place.rank, place.world_size))[0]
    return store


async def _meet(job: RankJob, bulletin: StoreRendezvous) -> tuple[RunFolder, str, bytes]:
    """Agree on the run folder, the folder of sockets and the token, which rank 0 made."""
    bulletin.set(f"pid/{job.place.rank}", str(os.getpid()).encode())
    if job.guard.folder is not None:
        token_file(job.sockets).write_bytes(job.token)
        bulletin.set("job", msgspec.msgpack.encode(JobInfo(str(job.guard.folder.path), job.sockets)))
        return job.guard.folder, job.sockets, job.token
    info = msgspec.msgpack.decode(await bulletin.wait("job"), type=JobInfo)
    return RunFolder(Path(info.run_folder)), info.sockets, token_file(info.sockets).read_bytes()


async def _peers(place: Place, bulletin: StoreRendezvous) -> dict[str, int]:
    """The other ranks of this node by name, with their pids."""
    others = [rank for rank in range(place.world_size) if rank != place.rank]
    return {f"rank {rank}": int(await bulletin.wait(f"pid/{rank}")) for rank in others}


def attempt_nonce(place: Place, token: bytes) -> str:
    """A name that no other start of any job has: the number of the restart, and a digest of this start's random token."""
    return f"{place.attempt}-{hashlib.blake2b(token, digest_size=8).hexdigest()}"


def token_file(sockets: str) -> Path:
    """Where rank 0 leaves the job token for the ranks of its node: in the folder of sockets, which only this user enters."""
    return Path(sockets) / "token"
