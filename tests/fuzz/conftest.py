"""Fixtures of the fuzz tests."""

from collections.abc import AsyncIterator

import pytest

from asyncrl.runtime import ActorSystem, RealHost
from tests.faults.conftest import StartPeer, caller, folder, job, nothing_is_left, start_peer
from tests.faults.systems import bind
from tests.fuzz.fort import ACTORS, JOB_KEY, Fort

__all__ = ["caller", "folder", "fort", "job", "nothing_is_left", "sealed_fort", "start_peer"]


@pytest.fixture(params=["ipc", "tcp"])
async def fort(request: pytest.FixtureRequest, start_peer: StartPeer, caller: ActorSystem) -> Fort:
    return Fort(await start_peer("there", request.param, actors=ACTORS), caller)


@pytest.fixture
async def sealed_fort(start_peer: StartPeer, folder: str) -> AsyncIterator[Fort]:
    """A process whose connections are sealed by the job's key."""
    peer = await start_peer("there", "tcp", actors=ACTORS, job_key=JOB_KEY)
    async with bind("caller", f"ipc://{folder}/sealed.sock", RealHost(), job_key=JOB_KEY) as sealed:
        yield Fort(peer, sealed)
