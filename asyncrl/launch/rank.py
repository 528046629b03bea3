"""One rank from the join to the end: models on the device thread, roles as actors, and on rank 0 the controller."""

import asyncio
import os
import signal
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import msgspec
from torch.distributed import PrefixStore, Store, rendezvous  # type: ignore[attr-defined]

from asyncrl.config.load import Loaded, to_yaml
from asyncrl.errors import AsyncRLError, ConfigError, DataError
from asyncrl.launch.cluster import RankAddresses, connect, start_cpu_processes
from asyncrl.launch.environment import Place
from asyncrl.launch.guard import EXIT_CONFIG, EXIT_FAILED, Guard
from asyncrl.launch.header import header_lines
from asyncrl.launch.inputs import open_prompts, open_tokenizer, total_steps
from asyncrl.launch.models import Models, build_models, device_of, join_group, leave_group, policy_settings, reference_micro
from asyncrl.launch.run_folder import RunFolder, log_to
from asyncrl.launch.session import Controller, Session, say, train
from asyncrl.launch.store import StoreRendezvous
from asyncrl.observe.curve import draw_curve
from asyncrl.runtime.actor import Actor, endpoint
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

SIGNAL_EXITS = {signal.SIGINT: 130, signal.SIGTERM: 143}


@dataclass(frozen=True, slots=True)
class RankJob:
    """What this rank was started with; ``folder``, ``sockets`` and ``supervisor`` are rank 0's."""

    loaded: Loaded
    place: Place
    host: RealHost
    parent: int
    folder: RunFolder | None
    sockets: str
    token: bytes
    supervisor: SupervisorClient | None


class JobInfo(msgspec.Struct, frozen=True):
    """What rank 0 tells the others. The folder of sockets holds the token, readable by this user alone."""

    run_folder: str
    sockets: str


class RankControl(Actor):
    """Lets rank 0 say that the run is over."""

    def __init__(self, over: asyncio.Event) -> None:
        self._over = over

    @endpoint
    async def leave(self) -> None:
        """The run is over; the rank may go."""
        self._over.set()


async def run_rank(job: RankJob, controller: Controller = train) -> int:
    """Run this rank; return its exit code. ``controller`` is rank 0's. Whatever fails becomes the first cause."""
    thread = DeviceThread()
    store = await thread.run(_open_store, job.place)
    bulletin = StoreRendezvous(PrefixStore(f"asyncrl/{job.place.attempt}", store), job.host)
    folder, sockets, token = await _meet(job, bulletin)
    guard = Guard(folder)
    guard.watch({"the torchrun agent": job.parent})
    log = log_to(folder, f"rank{job.place.rank}")
    interrupts = Interrupts()
    if job.supervisor is not None:
        job.supervisor.attach_loop(lambda death: guard.end(describe_death(death)))
    endpoint = f"ipc://{sockets}/rank{job.place.rank}.sock"
    try:
        async with ActorSystem.bind(
            f"rank{job.place.rank}", endpoint, host=job.host, attempt=str(job.place.attempt), token=token
        ) as system:
            await thread.run(join_group, PrefixStore("group", store), job.place)
            rank = _Rank(job, system, thread, bulletin, guard, folder)
            await (rank.lead(controller) if job.place.rank == 0 else rank.follow())
        await thread.run(leave_group)
    except asyncio.CancelledError:
        if interrupts.caught is None:
            raise
        guard.end(f"stopped by {interrupts.caught.name}", SIGNAL_EXITS[interrupts.caught])
    except (ConfigError, DataError) as error:
        guard.end(str(error), EXIT_CONFIG)
    except Exception as error:
        log.error("".join(traceback.format_exception(error)))
        guard.end(describe_failure(error), EXIT_FAILED)
    finally:
        thread.close()
    return 0


class Interrupts:
    """SIGINT and SIGTERM cancel the main task; the first one is kept. A second one ends the process at once."""

    def __init__(self) -> None:
        self.caught: signal.Signals | None = None
        loop = asyncio.get_running_loop()
        task = asyncio.current_task()
        assert task is not None
        for number in SIGNAL_EXITS:
            loop.add_signal_handler(number, self._interrupt, number, task.cancel)

    def _interrupt(self, number: signal.Signals, cancel: Callable[[], bool]) -> None:
        if self.caught is None:
            self.caught = number
            cancel()


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
        self.guard.watch(await self._peers())
        await self.over.wait()
        self.guard.release()

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
        self.guard.watch(await self._peers())
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
        control = await self.system.spawn(RankControl, self.over, name="control")
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

    async def _peers(self) -> dict[str, int]:
        """The other ranks of this node by name, with their pids."""
        others = [rank for rank in range(self.job.place.world_size) if rank != self.job.place.rank]
        return {f"rank {rank}": (await self._addresses(rank)).pid for rank in others}

    async def _finish(self, ranks: list[RankAddresses], supervisor: SupervisorClient) -> None:
        """The run is over: let the others go, stop the CPU processes, draw the curve."""
        self.guard.release()
        for rank in ranks:
            await self.system.ref(rank.control, RankControl).call(RankControl.leave)
        await supervisor.stop()
        if (self.folder.path / "metrics.jsonl").exists():
            curve = draw_curve(self.folder.path, f"{self.config.trainer.experiment_name}, seed {self.config.trainer.seed}")
            say(f"learning curve: {curve}")


def describe_death(death: ProcessDeath) -> str:
    """A child's death in words: who, how, and its last lines."""
    lines = "".join(f"\n  | {line}" for line in death.last_lines)
    return f"{death.name} (pid {death.pid}) died: {death.exit}{lines}"


def describe_failure(error: Exception) -> str:
    """The cause of a failed run in words: the innermost known error first."""
    if isinstance(error, AsyncRLError):
        return f"{type(error).__name__}: {error}"
    return f"unexpected {type(error).__name__}: {error} (the traceback is in the log of this rank)"


def _open_store(place: Place) -> Store:
    store: Store = next(rendezvous("env://", place.rank, place.world_size))[0]
    return store


async def _meet(job: RankJob, bulletin: StoreRendezvous) -> tuple[RunFolder, str, bytes]:
    """Agree on the run folder, the folder of sockets and the token, which rank 0 made."""
    if job.folder is not None:
        token_file(job.sockets).write_bytes(job.token)
        bulletin.set("job", msgspec.msgpack.encode(JobInfo(str(job.folder.path), job.sockets)))
        return job.folder, job.sockets, job.token
    info = msgspec.msgpack.decode(await bulletin.wait("job"), type=JobInfo)
    return RunFolder(Path(info.run_folder)), info.sockets, token_file(info.sockets).read_bytes()


def token_file(sockets: str) -> Path:
    """Where rank 0 leaves the job token for the ranks of its node: in the folder of sockets, which only this user enters."""
    return Path(sockets) / "token"
