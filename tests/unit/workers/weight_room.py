"""Engine processes and senders for tests: engines that start at once, and groups that stop where a test wants them."""

import asyncio
import os
import signal
import threading
from collections.abc import Callable, Iterable
from datetime import timedelta
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch._C._distributed_c10d import TCPStore

from asyncrl.rollout.engine import RolloutEngine
from asyncrl.rollout.scripted import ScriptedEngine
from asyncrl.runtime import Actor, ActorAddress, ActorRef, ActorSystem, endpoint
from asyncrl.trajectory import GenerateOutput, GenerateRequest
from asyncrl.weight_sync.broadcast import BroadcastSync
from asyncrl.weight_sync.digest import digest
from asyncrl.weight_sync.group import StorePlace, WeightGroup
from asyncrl.workers.engine_process import EngineProcess, EngineRecipe, Held, rollout_of
from asyncrl.workers.rollout import RolloutWorker
from asyncrl.workers.weights import WeightSender, Wire

NOTHING = EngineRecipe(folder="", device="cpu", dtype="float32", max_num_seqs=4, max_model_len=64, max_num_batched_tokens=64)
BUCKET = 1 << 10
BUCKETS = 5
"""Of the weights below, in buckets of that size."""


def weights_of(version: int) -> list[tuple[str, Tensor]]:
    """Five buckets of weights that no other version has."""
    generator = torch.Generator().manual_seed(version)
    return [("a", torch.randn(600, generator=generator)), ("b", torch.randn(8, 80, generator=generator).bfloat16()), ("c", torch.ones(256))]


class PlainEngine(ScriptedEngine):
    """Answers with the tokens 1, 2, 3, ..., and names the weights that it was given as every engine must."""

    def __init__(self) -> None:
        super().__init__(lambda request: range(1 + request.drawn, 4096))

    def load(self, version: int, weights: Iterable[tuple[str, Tensor]]) -> str:
        held = [(name, weight.clone()) for name, weight in weights]
        super().load(version, held)
        return digest(held)


class PlainProcess(EngineProcess):
    """An engine process without a model."""

    def __init__(self) -> None:
        super().__init__(NOTHING)

    def open(self) -> RolloutEngine:
        return PlainEngine()

    @endpoint
    async def pid(self) -> int:
        """Of the process that it lives in."""
        return os.getpid()


def stopping_group(before: Callable[[int], None]) -> type[WeightGroup]:
    """A group that calls ``before(n)`` before the n-th bucket of each member leaves, from 1, on the sending thread.

    ``before(0)`` comes before the sender joins.
    """

    class StoppingGroup(WeightGroup):
        sent = 0

        def __init__(self, *args: Any) -> None:
            before(0)
            super().__init__(*args)

        def send(self, bucket: Tensor, seconds: float = 10.0) -> None:
            self.sent += 1
            before(self.sent)
            super().send(bucket, seconds)

    return StoppingGroup


class Hold:
    """Stops a transfer before the n-th bucket from when it was armed, once, until it is let go."""

    def __init__(self) -> None:
        self._left = 0
        self._reached, self._go = asyncio.Event(), threading.Event()
        self._loop = asyncio.get_running_loop()

    def arm(self, number: int) -> None:
        """Stop before the ``number``-th bucket from now, from 1."""
        self._left = number
        self._reached.clear()
        self._go.clear()

    def __call__(self, number: int) -> None:
        self._left -= number > 0
        if number and self._left == 0:
            self._loop.call_soon_threadsafe(self._reached.set)
            assert self._go.wait(20)

    async def reached(self) -> None:
        """Returns when the transfer has come so far."""
        async with asyncio.timeout(20):
            await self._reached.wait()

    def go(self) -> None:
        """Let it go on."""
        self._go.set()


class Store:
    """A store for members to meet at, as torchrun has one."""

    def __init__(self) -> None:
        self._master = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False, timeout=timedelta(seconds=30))
        self.wire = Wire(StorePlace("127.0.0.1", self._master.port), "gloo")


async def start_sender(system: ActorSystem, store: Store, sync: BroadcastSync, before: Callable[[int], None]) -> ActorRef[WeightSender]:
    """A sender in this process whose groups call ``before``."""

    class Sender(WeightSender):
        group: ClassVar[type[WeightGroup]] = stopping_group(before)

    return await system.spawn(Sender, sync, store.wire, 20.0, name="weights")


class DyingSender(Actor):
    """A rank that holds version 1 and dies before bucket ``number`` of its first life."""

    process_role = "rank"

    def __init__(self, store: StorePlace, number: int) -> None:
        self.store, self.number = store, number

    async def on_start(self) -> None:
        system, number = self.context.system, self.number
        first_life = system.identity.generation == 0

        def before(bucket: int) -> None:
            if first_life and bucket == number:
                os.kill(os.getpid(), signal.SIGKILL)

        class Sender(WeightSender):
            group: ClassVar[type[WeightGroup]] = stopping_group(before)

        sync = BroadcastSync(BUCKET)
        sync.publish(1, weights_of(1))
        await system.spawn(Sender, sync, Wire(self.store, "gloo"), 20.0, name="weights")

    @endpoint
    async def send(self, engine: ActorAddress) -> Held:
        """As the sender in this process."""
        return await self.context.system.instance("weights", WeightSender).send(engine)


class Client:
    """Asks one engine and collects what comes."""

    def __init__(self, engine: ActorRef[EngineProcess]) -> None:
        self._engine: ActorRef[RolloutWorker] = ActorRef(engine.caller, rollout_of(engine.address)).with_deadline(20.0)
        self.answers: asyncio.Queue[GenerateOutput] = asyncio.Queue()
        self._listening = asyncio.Event()

    async def run(self) -> None:
        """Listen until cancelled."""
        async for answers in self._engine.stream(RolloutWorker.answers, "client"):
            assert not answers.refused
            self._listening.set()
            for output in answers.outputs:
                self.answers.put_nowait(output)

    async def submit(self, *requests: GenerateRequest) -> None:
        """Ask; the answers come into the queue."""
        await self._listening.wait()
        await self._engine.call(RolloutWorker.submit, "client", list(requests))

    async def answer(self) -> GenerateOutput:
        """The next answer."""
        async with asyncio.timeout(20):
            return await self.answers.get()
