"""Child processes under a supervisor, as a run has them, and the actor that answers in one of them."""

import contextlib
import tempfile
from collections.abc import AsyncIterator
from typing import ClassVar

from asyncrl.runtime.actor import Actor, endpoint
from asyncrl.runtime.host import RealHost, remove_folder
from asyncrl.runtime.security import private_folder, process_endpoint
from asyncrl.runtime.supervisor_client import SupervisorClient
from asyncrl.runtime.supervisor_messages import ProcessDeath
from asyncrl.runtime.system import ActorSystem
from asyncrl.tensors.wire import Column
from asyncrl.transfer_queue import columns as columns

ENVIRONMENT = ("PYTHONPATH", "OMP_NUM_THREADS")
Message = dict[str, str | int]


class Echo(Actor):
    """Gives back what it gets."""

    concurrency: ClassVar[int] = 0

    @endpoint
    async def nothing(self) -> None:
        """The empty call."""

    @endpoint
    async def message(self, message: Message) -> Message:
        """A small typed message."""
        return message

    @endpoint
    async def column(self, column: Column) -> Column:
        """A large one: its buffer travels as a frame."""
        return column


@contextlib.asynccontextmanager
async def job(interface: str = "") -> AsyncIterator[ActorSystem]:
    """A system of this process that can spawn children; they and all folders are gone when the block ends.

    They talk over ipc, or over tcp ports of ``interface``.
    """
    host, sockets, logs = RealHost(), private_folder(), tempfile.mkdtemp(prefix="asyncrl-bench-")
    try:
        supervisor = SupervisorClient.start(
            host=host, folder=sockets, log_folder=logs, attempt="bench", env_allow=ENVIRONMENT, interface=interface
        )
        supervisor.attach_loop(_ignored)
        try:
            own = process_endpoint(sockets, "bench", interface)
            token, attempt = supervisor.token, supervisor.attempt
            # The references block the loop on purpose.
            async with ActorSystem.bind("bench", own, host=host, attempt=attempt, token=token, watching=None) as system:
                system.attach(supervisor)
                yield system
        finally:
            await supervisor.stop(grace=2.0)
    finally:
        remove_folder(sockets)
        remove_folder(logs)


def _ignored(death: ProcessDeath) -> None:
    """A death fails the calls to that process, which end the benchmark."""
