"""Fixtures of the runtime's tests: nothing may be left behind."""

import asyncio
import gc
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from asyncrl.runtime import ActorSystem, RealHost, SupervisorClient, private_folder
from asyncrl.runtime.host import remove_folder
from asyncrl.runtime.supervisor_messages import ProcessDeath
from tests.unit.runtime.runtime_actors import open_descriptors

ROOT = str(Path(__file__).parents[3])


@pytest.fixture(autouse=True)
async def nothing_is_left() -> AsyncIterator[None]:
    """Fails a test that leaves a task or a file descriptor behind."""
    gc.collect()
    before = open_descriptors()
    tasks = asyncio.all_tasks()
    yield
    gc.collect()
    left = [task.get_name() for task in asyncio.all_tasks() - tasks if not task.done() and task is not asyncio.current_task()]
    assert not left, f"tasks left behind: {left}"
    # Descriptors of what ended before this test may go meanwhile: only more of them are a leak.
    more = Counter(open_descriptors()) - Counter(before)
    assert not more, f"descriptors left behind: {dict(more)}"


@pytest.fixture
def folder() -> Iterator[str]:
    """A private folder for sockets."""
    path = private_folder()
    yield path
    remove_folder(path)


class Job:
    """A supervisor with its system and the deaths that were reported."""

    def __init__(self, client: SupervisorClient, system: ActorSystem, deaths: "asyncio.Queue[ProcessDeath]") -> None:
        self.client, self.system, self.deaths = client, system, deaths


@pytest.fixture
async def job(folder: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Job]:
    """A running supervisor, attached."""
    monkeypatch.setenv("PYTHONPATH", ROOT)
    monkeypatch.setenv("SECRET_OF_THE_PARENT", "hidden")
    client = SupervisorClient.start(
        host=RealHost(), folder=folder, log_folder=str(tmp_path / "logs"), attempt="a1", env_allow=["PYTHONPATH"]
    )
    deaths: asyncio.Queue[ProcessDeath] = asyncio.Queue()
    client.attach_loop(deaths.put_nowait)
    async with ActorSystem.bind("rank0", f"ipc://{folder}/rank0.sock", host=RealHost(), attempt="a1", token=client.token) as system:
        system.attach(client)
        yield Job(client, system, deaths)
    await client.stop(grace=2.0)
