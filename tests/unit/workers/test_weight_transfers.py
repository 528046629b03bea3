"""A transfer in which one side dies, at any bucket: no mix of versions, no leftovers, and the next sync works."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from asyncrl.errors import ActorDied, TransferInterrupted
from asyncrl.runtime import ActorRef, ActorSystem, ProcessDeath
from asyncrl.runtime.tasks import running
from asyncrl.trajectory import GenerateRequest, SamplingParams
from asyncrl.weight_sync.broadcast import BroadcastSync
from asyncrl.workers.engine_process import EngineProcess, Held
from asyncrl.workers.fleet import EngineFleet, Member
from tests.unit.workers.weight_room import BUCKET, BUCKETS, Client, DyingSender, PlainProcess, Store, start_sender, weights_of

pytestmark = pytest.mark.timeout(120)  # children import torch, on a busy machine


def some(*numbers: int) -> Any:
    """These buckets in the suite; all of them in the long run."""
    return [pytest.param(k, marks=[] if k in numbers else pytest.mark.faults) for k in range(1, BUCKETS + 1)]


def ask(number: int, tokens: int = 4) -> GenerateRequest:
    return GenerateRequest(
        request_id=f"r{number}", uid="u", session=str(number), prompt_ids=[1], sampling=SamplingParams(max_tokens=tokens)
    )


class Room:
    """An engine in a child, its sender and its fleet here."""

    def __init__(self, system: ActorSystem, engine: ActorRef[Any], store: Store) -> None:
        self.system, self.engine, self.store, self.sync = system, engine, store, BroadcastSync(BUCKET)
        self.said: asyncio.Queue[str] = asyncio.Queue()
        self.deaths: asyncio.Queue[ProcessDeath] = asyncio.Queue()
        system.children.on_death = self.deaths.put_nowait
        self.pid, self.kill_at, self.sent = 0, -1, 0

    def before(self, number: int) -> None:
        """Kills the engine before the bucket that a test has chosen, counted over all transfers; 0 is when its group is made."""
        self.sent += number > 0
        if (self.sent if number else 0) == self.kill_at:
            self.kill_at = -1
            os.kill(self.pid, signal.SIGKILL)

    async def start(self, *others: ActorRef[Any]) -> None:
        sender = await start_sender(self.system, self.store, self.sync, self.before)
        members: Any = [Member(engine.watched(30.0), sender.watched(30.0)) for engine in (self.engine, *others)]
        self.fleet = (await self.system.spawn(EngineFleet, members, self.said.put_nowait, name="fleet")).watched(60.0)
        self.pid = await self.engine.call(PlainProcess.pid)

    async def publish(self, version: int) -> str:
        name = self.sync.publish(version, weights_of(version))
        await self.fleet.call(EngineFleet.publish, version, name)
        return name

    async def held(self) -> Held:
        return await self.engine.watched(30.0).call(EngineProcess.held)

    async def life(self) -> str:
        """What is said of the next life that serves."""
        async with asyncio.timeout(60):
            return await self.said.get()


@pytest.fixture
async def room(tmp_path: Path) -> AsyncIterator[Room]:
    async with ActorSystem.start("main", log_folder=str(tmp_path / "logs")) as system:
        engine: ActorRef[Any] = await system.spawn(PlainProcess, name="engine-0", process="new", restarts=3)
        room = Room(system, engine, Store())
        await room.start()
        yield room


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


@pytest.mark.parametrize("bucket", some(3))
async def test_an_engine_that_dies_at_a_bucket_is_given_the_version_in_its_next_life(room: Room, bucket: int) -> None:
    await room.publish(0)
    before = descriptors()
    room.kill_at = BUCKETS + bucket
    name = await room.publish(1)
    assert room.sent > BUCKETS + bucket, "it was not sent again"
    assert (await room.life()).startswith("engine-0 serves again, with version 1")
    assert await room.held() == Held(1, name)
    client = Client(room.engine)
    async with running(client.run):
        await client.submit(ask(1))
        assert (await client.answer()).versions == [1] * 4
    assert await room.publish(2) == (await room.held()).digest
    assert descriptors() <= before + 2


@pytest.mark.faults
async def test_an_engine_that_dies_while_its_group_is_made_is_given_the_version_in_its_next_life(room: Room) -> None:
    room.kill_at = 0
    name = await room.publish(0)
    assert (await room.deaths.get()).exit == "signal 9 (SIGKILL)"
    assert await room.held() == Held(0, name)
    assert await room.publish(1) == (await room.held()).digest


@pytest.mark.faults
async def test_an_engine_that_dies_in_between_takes_requests_at_once_and_answers_with_the_version_in_force(room: Room) -> None:
    name = await room.publish(5)
    client = Client(room.engine)
    os.kill(room.pid, signal.SIGKILL)
    async with asyncio.timeout(20):
        assert (await room.deaths.get()).restarting
    async with running(client.run):
        await client.submit(ask(1))
        assert (await client.answer()).versions == [5] * 4
    assert (await room.life()).startswith("engine-0 serves again, with version 5")
    assert await room.held() == Held(5, name)


@pytest.mark.parametrize("bucket", some())
async def test_a_sender_that_dies_at_a_bucket_leaves_the_engine_with_what_it_had(room: Room, bucket: int) -> None:
    name = await room.publish(0)
    client = Client(room.engine)
    sender = await room.system.spawn(DyingSender, room.store.wire.store, bucket, name="rank1", process="new", restarts=1)
    async with running(client.run):
        with pytest.raises(ActorDied, match="SIGKILL"):
            await sender.watched(30.0).call(DyingSender.send, room.engine.address)
        assert await room.held() == Held(0, name)
        await client.submit(ask(1, tokens=2000))
        assert (await sender.watched(30.0).call(DyingSender.send, room.engine.address)).version == 1
        spanning = await client.answer()
        assert spanning.versions == sorted(spanning.versions)
        assert len(spanning.versions) == 2000
        await client.submit(ask(2))
        assert (await client.answer()).versions == [1] * 4


async def test_while_another_engine_lives_nobody_waits_for_the_next_life_of_one_that_died(tmp_path: Path) -> None:
    async with ActorSystem.start("main", log_folder=str(tmp_path / "logs")) as system:
        engines: list[ActorRef[Any]] = [
            await system.spawn(PlainProcess, name=f"engine-{number}", process="new", restarts=3) for number in range(2)
        ]
        room = Room(system, engines[0], Store())
        await room.start(engines[1])
        await room.publish(0)
        os.kill(room.pid, signal.SIGKILL)
        name = await room.publish(1)
        # The next life takes a second at least to begin.
        assert room.said.empty()
        assert await engines[1].watched(30.0).call(EngineProcess.held) == Held(1, name)
        assert (await room.life()).startswith("engine-0 serves again, with version 1")
        assert await room.held() == Held(1, name)
        assert await room.publish(2) == (await room.held()).digest


@pytest.mark.faults
async def test_an_engine_without_another_life_is_named(room: Room) -> None:
    await room.publish(0)
    await room.system.stop_process("engine-0")
    with pytest.raises((ActorDied, TransferInterrupted), match="engine-0"):
        await room.publish(1)
