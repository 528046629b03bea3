"""Engines as actors with a router to them, in one process, and a device that stops after the step that a test wants."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import ParamSpec, TypeVar

from asyncrl.rollout.engine import RolloutEngine
from asyncrl.rollout.scripted import Script, ScriptedEngine
from asyncrl.runtime import ActorRef, ActorSystem
from asyncrl.runtime.tasks import Crew
from asyncrl.training.device_thread import DeviceRunner, InlineDevice
from asyncrl.trajectory import GenerateOutput, GenerateRequest, SamplingParams
from asyncrl.workers.engines import EngineClient, EngineRouter
from asyncrl.workers.lockstep import Lockstep
from asyncrl.workers.rollout import RolloutWorker

P = ParamSpec("P")
T = TypeVar("T")


def ask(session: int, *, uid: str = "u0", max_tokens: int = 8, report_start: bool = False) -> GenerateRequest:
    return GenerateRequest(
        request_id=f"{uid}_{session}/0",
        uid=uid,
        session=str(session),
        prompt_ids=[1, 2],
        sampling=SamplingParams(max_tokens=max_tokens),
        report_start=report_start,
    )


def script(request: GenerateRequest, length: int = 30) -> list[int]:
    """An answer of its own for each session, without an end within ``length``; a continued one goes on where it was."""
    return [100 * int(request.session) + place for place in range(length)][request.drawn :]


class SpyEngine(ScriptedEngine):
    """Remembers what it was asked, and how often it stepped with requests."""

    def __init__(self, answer: Script = script, *, max_num_seqs: int = 256, loaded: bool = True) -> None:
        super().__init__(answer, max_num_seqs=max_num_seqs)
        self.asked: list[GenerateRequest] = []
        self.steps = 0
        if loaded:
            self.load(0, [])

    def submit(self, requests: Sequence[GenerateRequest]) -> None:
        self.asked += requests
        super().submit(requests)

    def step(self) -> list[GenerateOutput]:
        self.steps += bool(self.unfinished)
        return super().step()


class HeldDevice:
    """Runs jobs at once, and keeps the result of the engine's n-th step to itself until it is let go.

    Steps count from 1, over the whole life; only those for which ``engine`` has requests count.
    """

    def __init__(self, engine: RolloutEngine) -> None:
        self._engine = engine
        self._holds: dict[int, asyncio.Event] = {}
        self._held: dict[int, asyncio.Event] = {}
        self.steps = 0

    async def run(self, function: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        await asyncio.sleep(0)
        result = function(*args, **kwargs)
        if function.__name__ == "_turn":
            self.steps += 1
            if self.steps in self._holds:
                self._held[self.steps].set()
                await self._holds[self.steps].wait()
        return result

    def hold_after(self, steps: int) -> int:
        """Hold after so many further steps."""
        place = self.steps + steps
        self._holds[place], self._held[place] = asyncio.Event(), asyncio.Event()
        return place

    async def held(self, place: int) -> None:
        """Wait until the device holds."""
        await asyncio.wait_for(self._held[place].wait(), 10)

    def let_go(self, place: int) -> None:
        self._holds[place].set()


@dataclass(slots=True)
class EngineRoom:
    """What a test drives."""

    system: ActorSystem
    engines: list[RolloutEngine]
    workers: list[ActorRef[RolloutWorker]]
    clients: list[EngineClient]
    router: EngineRouter


@contextlib.asynccontextmanager
async def engine_room(
    *engines: RolloutEngine,
    devices: Mapping[int, DeviceRunner] | None = None,
    lockstep: Lockstep | None = None,
    patience: float = 10.0,
) -> AsyncIterator[EngineRoom]:
    """Actors ``rollout-0``, ``rollout-1`` ... and a router of one agent process to them."""
    async with ActorSystem.local() as system:
        workers = []
        for number, engine in enumerate(engines):
            device = (devices or {}).get(number) or InlineDevice()
            workers.append(await system.spawn(RolloutWorker, device, engine, name=f"rollout-{number}"))
        clients = [EngineClient("agent-0.0", worker) for worker in workers]
        router = EngineRouter(clients, lockstep, system.waits, patience)
        crew = Crew()
        for client in clients:
            crew.start(client.follow, name="answers")
        try:
            yield EngineRoom(system, list(engines), workers, clients, router)
        finally:
            await crew.close(5.0)


async def settle(room: EngineRoom) -> None:
    """Let everything that can happen happen: calls start in their order, so what was asked before has begun."""
    for _ in range(3):
        for worker in room.workers:
            await worker.call(RolloutWorker.version)
