"""A whole run in this process: one rank, no sockets, no thread of ours, so that a breakpoint works in any stage.

``asyncrl train ... debug=inline`` comes here; a script or a notebook opens the trainer itself::

    async with open_trainer(["config=quickstart", "trainer.total_training_steps=3"]) as trainer:
        report = await trainer.train_step()
"""

import asyncio
import contextlib
import logging
import os
import sys
from collections.abc import AsyncIterator, Iterator, Sequence
from typing import Any, TypeVar

from torch.distributed import HashStore  # type: ignore[attr-defined]

from asyncrl.config.load import Loaded, load_config, to_yaml
from asyncrl.config.schema import Config
from asyncrl.errors import CallFailed
from asyncrl.launch.checkpoint import newest_checkpoint
from asyncrl.launch.cluster import connect, shard_options, start_cpu_processes
from asyncrl.launch.controller import show_curve, tracked_trainer, train
from asyncrl.launch.environment import Place
from asyncrl.launch.header import header_lines
from asyncrl.launch.inputs import open_prompts, open_tokenizer, total_steps
from asyncrl.launch.models import join_group, leave_group
from asyncrl.launch.preflight import preflight
from asyncrl.launch.resume import CONFIG_FILE
from asyncrl.launch.roles import start_roles
from asyncrl.launch.run_folder import RunFolder, log_to
from asyncrl.launch.session import Session, say
from asyncrl.runtime.actor import Actor
from asyncrl.runtime.host import RealHost
from asyncrl.runtime.messages import ActorAddress
from asyncrl.runtime.pending import Limit
from asyncrl.runtime.ref import ActorRef
from asyncrl.runtime.system import ActorSystem
from asyncrl.runtime.tasks import running
from asyncrl.trainer.trainer import Trainer
from asyncrl.training.device_thread import InlineDevice

A = TypeVar("A", bound=Actor)

ONLY_RANK = Place(rank=0, local_rank=0, world_size=1, local_world_size=1, attempt=0, run_id="inline")


def train_inline(loaded: Loaded) -> None:
    """Run to the end. Errors are raised as they are, and Ctrl-C is KeyboardInterrupt."""
    asyncio.run(_train(loaded))


async def _train(loaded: Loaded) -> None:
    async with open_session(loaded) as session:
        await train(session)
        show_curve(loaded.config, session.folder)


@contextlib.asynccontextmanager
async def open_trainer(options: Sequence[str]) -> AsyncIterator[Trainer]:
    """A trainer that is ready for ``train_step``; ``options`` are those of the command line. One at a time in a process.

    Raises ConfigError and DataError for what cannot run, before anything is started.
    """
    loaded = load_config([*options, "debug=inline"])
    preflight(loaded.config)
    async with open_session(loaded) as session:
        with tracked_trainer(session) as trainer:
            async with trainer.started():
                yield trainer


@contextlib.asynccontextmanager
async def open_session(loaded: Loaded) -> AsyncIterator[Session]:
    """All roles of a run, started and connected; stopped at the end of the block, which an actor that fails ends early."""
    config, host = loaded.config, RealHost()
    with _run_folder(config, host) as folder, _group():
        async with InlineSystem.local(host) as system, system.supervised():
            tokenizer = open_tokenizer(config)
            prompts, rows = open_prompts(config, tokenizer)
            steps = total_steps(config, prompts.steps_per_epoch)
            roles = await start_roles(system, InlineDevice(), config, ONLY_RANK, steps)
            found = newest_checkpoint(config, folder)
            actors = await start_cpu_processes(system, config, shard_options(config, folder.path, found))
            cluster = await connect(system, config, actors, [roles])
            (folder.path / CONFIG_FILE).write_text(to_yaml(loaded.resolved))
            for notice in loaded.notices:
                say(notice)
            lines = header_lines(config, folder, actors, [os.getpid()], os.getpid())
            header = [("beside it" if name == "supervisor" else name, text) for name, text in lines]
            yield Session(loaded, host, folder, system, cluster, tokenizer, prompts, rows, steps, header, found)


class InlineSystem(ActorSystem):
    """Hosts every actor of the run, and gives everybody all the time: who stands at a breakpoint makes the others wait."""

    async def spawn(self, cls: type[A], *args: Any, name: str, process: str | None = None, restarts: int = 0, **kwargs: Any) -> ActorRef[A]:
        """Start an actor in this process, also one that would get a process of its own."""
        return await super().spawn(cls, *args, name=name, **kwargs)

    def ref(self, address: ActorAddress, cls: type[A]) -> ActorRef[A]:
        """A reference whose calls never time out."""
        return PatientRef(self, address, Limit(deadline=0.0))

    @contextlib.asynccontextmanager
    async def supervised(self) -> AsyncIterator[None]:
        """A block that fails with the first error of a background function of an actor."""
        failed = asyncio.Event()
        errors: list[BaseException] = []

        def fail(cause: str, error: BaseException) -> None:
            errors.append(error)
            failed.set()

        async def first_error() -> None:
            await failed.wait()
            raise errors[0]

        self.on_actor_failure = fail
        try:
            async with running(first_error):
                yield
        except CallFailed as error:
            error.add_note(f"at the callee:\n{error.remote_traceback}")
            raise


class PatientRef(ActorRef[A]):
    """A reference that no limit changes."""

    def with_deadline(self, seconds: float) -> ActorRef[A]:
        """The same: no deadline."""
        return self

    def watched(self, silence: float) -> ActorRef[A]:
        """The same: silence may last."""
        return self


@contextlib.contextmanager
def _run_folder(config: Config, host: RealHost) -> Iterator[RunFolder]:
    """The locked run folder, and the log in it; the logger is given back as it was."""
    folder = RunFolder.open(config, ONLY_RANK, host.wall_time())
    logger = logging.getLogger("asyncrl")
    level, propagate = logger.level, logger.propagate
    handler = log_to(folder, "inline").handlers[-1]
    try:
        yield folder
    finally:
        logger.removeHandler(handler)
        handler.close()
        logger.setLevel(level)
        logger.propagate = propagate
        os.close(folder.lock)


@contextlib.contextmanager
def _group() -> Iterator[None]:
    """A process group of one member."""
    hook = sys.excepthook
    join_group(HashStore(), ONLY_RANK.rank, [ONLY_RANK.rank])
    # torch puts "[rank0]: " before each line of a traceback; here there is nobody to tell it from.
    sys.excepthook = hook
    try:
        yield
    finally:
        leave_group()
