"""An engine takes new weights while it generates, whole or not at all."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
import torch

from asyncrl.errors import WeightSyncError
from asyncrl.rollout.embedded import EmbeddedEngine, EmbeddedOptions
from asyncrl.rollout.engine import RolloutEngine
from asyncrl.runtime import ActorRef, ActorSystem
from asyncrl.runtime.children import child_spec
from asyncrl.runtime.tasks import running
from asyncrl.trajectory import GenerateOutput, StopReason
from asyncrl.weight_sync.broadcast import BroadcastSync
from asyncrl.weight_sync.digest import digest
from asyncrl.workers.engine_process import EngineProcess, Held, rollout_of
from asyncrl.workers.rollout import RolloutWorker
from asyncrl.workers.weights import WeightSender
from tests.unit.rollout import tiny
from tests.unit.runtime.runtime_actors import Counter
from tests.unit.workers.weight_room import BUCKET, NOTHING, Client, Hold, Store, start_sender

MODELS = [tiny.qwen(version) for version in range(3)]


class TinyProcess(EngineProcess):
    """An engine process with a model of a few thousand weights that ends no answer by itself."""

    def __init__(self) -> None:
        super().__init__(NOTHING)

    def open(self) -> RolloutEngine:
        self.model = tiny.qwen(7)
        return EmbeddedEngine(self.model, EmbeddedOptions(max_num_seqs=4, max_model_len=128), digest=digest, eos=[])


class Room:
    """A sender, an engine process and a client, all here."""

    def __init__(self, system: ActorSystem, sync: BroadcastSync, sender: ActorRef[WeightSender], engine: ActorRef[EngineProcess]) -> None:
        self.system, self.sync, self.sender, self.engine, self.client = system, sync, sender, engine, Client(engine)

    def publish(self, version: int) -> str:
        return self.sync.publish(version, list(MODELS[version].named_parameters()))

    async def send(self) -> Held:
        return await self.sender.with_deadline(20.0).call(WeightSender.send, self.engine.address)

    async def ask(self, number: int, tokens: int) -> GenerateOutput:
        await self.client.submit(tiny.ask(number, 3, max_tokens=tokens))
        return await self.client.answer()

    @property
    def group(self) -> str:
        """The name of the group that the engine is in."""
        found = self.system.instance("engine-0", EngineProcess)._group
        return "" if found is None else found.name


@pytest.fixture
async def hold() -> Hold:
    return Hold()


@pytest.fixture
async def room(hold: Hold) -> AsyncIterator[Room]:
    store, sync = Store(), BroadcastSync(BUCKET)
    async with ActorSystem.local() as system:
        engine: ActorRef[Any] = await system.spawn(TinyProcess, name="engine-0")
        room = Room(system, sync, await start_sender(system, store, sync, hold), engine)
        async with running(room.client.run):
            yield room
    del store


def segments(output: GenerateOutput) -> list[int]:
    """The versions of an answer, each once, in their order."""
    return list(dict.fromkeys(output.versions))


def check_log_probs(output: GenerateOutput, number: int) -> None:
    """Each token's log-prob is that of a plain forward under the weights of its own version."""
    prompt = tiny.ask(number, 3).prompt_ids
    for version in segments(output):
        expected = tiny.plain_log_probs(MODELS[version], prompt, output.token_ids)
        for place, (found, held) in enumerate(zip(output.log_probs, output.versions, strict=True)):
            assert held != version or found == pytest.approx(expected[place], abs=1e-5)


def test_a_model_has_longer_to_be_read_than_other_children_to_start() -> None:
    assert child_spec(TinyProcess, (), {}, "engine-0", "engine-0").ready_within == 600.0
    assert child_spec(Counter, (), {}, "counter", "counter").ready_within == 30.0


async def test_requests_wait_for_the_first_weights(room: Room) -> None:
    await room.client.submit(tiny.ask(1, 3, max_tokens=5))
    assert await room.engine.call(EngineProcess.held) == Held(-1, "")
    name = room.publish(0)
    assert await room.send() == Held(0, name) == await room.engine.call(EngineProcess.held)
    output = await room.client.answer()
    assert output.versions == [0] * 5
    check_log_probs(output, 1)


async def test_first_weights_that_come_in_a_pause_leave_the_engine_paused(room: Room) -> None:
    rollout: ActorRef[RolloutWorker] = room.system.ref(rollout_of(room.engine.address), RolloutWorker)
    assert await rollout.call(RolloutWorker.pause) == 0
    await room.client.submit(tiny.ask(1, 3, max_tokens=20))
    for version in range(2):
        room.publish(version)
        assert (await room.send()).version == version
        assert await rollout.call(RolloutWorker.pause) == 0, "it was paused no more"
        assert [wait.what for wait in room.system.waits.snapshot() if wait.who == "controller"] == ["a resume (1 requests wait)"]
    await rollout.call(RolloutWorker.resume)
    assert (await room.client.answer()).versions == [1] * 20


async def test_the_engine_generates_while_weights_come_and_every_token_has_a_whole_version(room: Room, hold: Hold) -> None:
    room.publish(0)
    await room.send()
    room.publish(1)
    hold.arm(4)
    sending = asyncio.ensure_future(room.send())
    await hold.reached()
    during = [await room.ask(number, 5) for number in range(2, 6)]
    assert all(output.versions == [0] * 5 for output in during), "a part of the new weights was used"
    await room.client.submit(tiny.ask(9, 3, max_tokens=120))
    hold.go()
    assert (await sending).version == 1
    spanning = await room.client.answer()
    assert spanning.stop_reason is StopReason.LENGTH
    assert spanning.versions == sorted(spanning.versions)
    after = await room.ask(6, 5)
    assert after.versions == [1] * 5
    for output, number in [*zip(during, range(2, 6), strict=True), (spanning, 9), (after, 6)]:
        check_log_probs(output, number)


async def test_bytes_that_changed_on_the_way_are_not_loaded_and_the_next_sync_works(room: Room) -> None:
    room.publish(0)
    await room.send()
    room.publish(1)
    image = room.sync.borrow()
    image.run[17] ^= 1
    with pytest.raises(WeightSyncError, match="version 1 was announced as"):
        await room.send()
    room.sync.give_back(image)
    assert (await room.engine.call(EngineProcess.held)).version == 0
    assert (await room.ask(1, 5)).versions == [0] * 5
    room.publish(2)
    assert (await room.send()).version == 2
    assert (await room.ask(2, 5)).versions == [2] * 5


async def test_weights_of_another_model_are_refused_before_anything_travels(room: Room) -> None:
    room.publish(0)
    await room.send()
    before = room.group
    named = list(MODELS[1].named_parameters())
    for wrong, words in (
        (named[:-1], "no weights would come for"),
        ([*named, ("more", torch.zeros(1))], "no parameter 'more'"),
        ([(name, weight.bfloat16()) for name, weight in named], "is torch.bfloat16 of shape"),
        ([(name, weight[:-1]) for name, weight in named], "the engine's model has"),
    ):
        room.sync.publish(1, wrong)
        with pytest.raises(WeightSyncError, match=words):
            await room.send()
    assert (await room.ask(1, 5)).versions == [0] * 5
    room.publish(1)
    await room.send()
    assert room.group == before, "the group is still the first one"


async def test_a_sync_that_is_cancelled_half_way_leaves_the_engine_as_it_was(room: Room, hold: Hold) -> None:
    room.publish(0)
    hold.arm(4)
    sending = asyncio.ensure_future(room.send())
    await hold.reached()
    first = room.group
    sending.cancel()
    with pytest.raises(asyncio.CancelledError):
        await sending
    hold.go()
    assert await room.engine.call(EngineProcess.held) == Held(-1, "")
    room.publish(1)
    assert (await room.send()).version == 1
    assert (await room.ask(1, 5)).versions == [1] * 5
    assert first != room.group != ""
    assert [wait for wait in room.system.waits.describe() if "bucket" in wait] == []
