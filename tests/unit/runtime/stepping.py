"""A stage with two systems under virtual time, on which something happens before the step of a given number."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextvars import Context
from typing import Any, TypeVar, TypeVarTuple

import msgspec

from asyncrl.runtime import Actor, ActorRef, ActorSystem, endpoint
from asyncrl.runtime.messages import TO_CALLEE, TO_CALLER, Accepted, Call, Failure, Message, Reply, StreamEnd
from asyncrl.runtime.simulation import Faults, NetworkEvent, SimulatedLoop, Simulation

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

CREDIT = 2
LATENCY = 0.001
PAUSE = 0.01
SETTLED = 40.0
"""Virtual seconds after which nothing may go on."""
CALLEE: msgspec.msgpack.Decoder[Message] = msgspec.msgpack.Decoder(TO_CALLEE)
CALLER: msgspec.msgpack.Decoder[Message] = msgspec.msgpack.Decoder(TO_CALLER)


class SteppedLoop(SimulatedLoop):
    """Does something once, before the callback of number ``at`` since ``watch_from_here``."""

    def __init__(self, at: int) -> None:
        super().__init__()
        self.at = at
        self._count = 0
        self._act: Callable[[], object] | None = None

    def watch_from_here(self, act: Callable[[], object]) -> None:
        """Starts to count."""
        self._act = act

    @property
    def acted(self) -> bool:
        """Whether the step has come."""
        return self._count > self.at

    def call_soon(self, callback: Callable[[*Ts], object], *args: *Ts, context: Context | None = None) -> asyncio.Handle:
        return super().call_soon(self._step, callback, args, context=context)

    def call_at(self, when: float, callback: Callable[[*Ts], object], *args: *Ts, context: Context | None = None) -> asyncio.TimerHandle:
        return super().call_at(when, self._step, callback, args, context=context)

    def _step(self, callback: Callable[..., object], args: tuple[Any, ...]) -> None:
        if self._act is not None:
            act, last = self._act, self._count == self.at
            self._count += 1
            if last:
                self._act = None
                act()
        callback(*args)


class Careful(Actor):
    """Takes steps, notes when, and how its calls ended."""

    def __init__(self) -> None:
        self.steps: list[float] = []
        self.effects = 0
        self.running = 0
        self.release = asyncio.Event()

    def _step(self) -> None:
        self.steps.append(asyncio.get_running_loop().time())

    @endpoint
    async def work(self) -> int:
        self.running += 1
        try:
            for _ in range(3):
                await asyncio.sleep(PAUSE)
                self._step()
                self.context.progress()
            self.effects += 1
            return self.effects
        finally:
            self.running -= 1

    @endpoint(idempotent=True)
    async def again(self) -> int:
        await asyncio.sleep(PAUSE)
        self.effects += 1
        return self.effects

    @endpoint(collective=True)
    async def together(self) -> int:
        self.effects += 1
        await asyncio.sleep(PAUSE)
        return self.effects

    @endpoint
    def block(self) -> int:
        self.effects += 1
        return self.effects

    @endpoint
    async def count(self, until: int) -> AsyncIterator[int]:
        self.running += 1
        try:
            for number in range(until):
                self._step()
                yield number
        finally:
            self.running -= 1

    @endpoint
    async def hold(self) -> int:
        await self.release.wait()
        return 0

    @endpoint
    async def let_go(self) -> None:
        self.release.set()


class Wide(Careful):
    """Any number of calls at a time."""

    concurrency = 0


class Stage:
    """What an act finds: ``careful`` and ``wide`` of ``there``, seen from ``here``, and ``second``, which is like ``there``."""

    def __init__(self, simulation: Simulation) -> None:
        self.simulation = simulation
        self.there, self.here = simulation.system("there", credit=CREDIT), simulation.system("here", credit=CREDIT)
        self.second = simulation.system("second", credit=CREDIT)
        self.calls: dict[tuple[int, int], int] = {}
        simulation.network.watchers.append(self._heard)

    async def __aenter__(self) -> "Stage":
        for system in (self.there, self.second):
            await system.spawn(Careful, name="careful")
            await system.spawn(Wide, name="wide")
        return self

    async def __aexit__(self, *_: object) -> None:
        for system in self.systems:
            await system.close()

    @property
    def systems(self) -> tuple[ActorSystem, ...]:
        return self.here, self.there, self.second

    def careful(self, where: ActorSystem | None = None) -> ActorRef[Careful]:
        """The serial actor of ``there``, or of another system."""
        return self.here.ref((where or self.there).address("careful"), Careful)

    def wide(self) -> ActorRef[Wide]:
        return self.here.ref(self.there.address("wide"), Wide)

    def actor(self, name: str = "careful", where: ActorSystem | None = None) -> Careful:
        """The object itself."""
        return (where or self.there).instance(name, Careful)

    def _heard(self, event: NetworkEvent) -> None:
        if event.kind != "delivered":
            return
        decoder = CALLER if event.target == "here#0" else CALLEE
        message = decoder.decode(event.frames[0])
        if isinstance(message, Call):
            self.calls[event.connection, message.id] = 0
        elif isinstance(message, Reply | Failure | Accepted | StreamEnd):
            self.calls[event.connection, message.id] += 1

    async def check_quiet(self) -> None:
        """Nothing waits, nothing runs, every call that arrived was answered once, and all credit is there."""
        for system in self.systems:
            assert system.waits.snapshot() == []
        assert asyncio.all_tasks() == {asyncio.current_task()}
        assert set(self.calls.values()) <= {1}
        assert self.actor().running == self.actor("wide").running == 0
        for ref in (self.careful(), self.wide()):
            await self._check_credit(ref)

    async def _check_credit(self, ref: ActorRef[Any]) -> None:
        actor = self.actor(ref.address.actor)
        actor.release.clear()
        waiting = asyncio.gather(*[ref.with_deadline(9.0).call(Careful.hold) for _ in range(CREDIT)])
        await asyncio.sleep(1.0)
        assert [wait.what for wait in self.here.waits.snapshot()] == ["Careful.hold"] * CREDIT
        actor.release.set()
        assert await waiting == [0] * CREDIT


Act = Callable[[Stage], Awaitable[Any]]
Check = Callable[[Stage, bool, float], Awaitable[None]]


def run_to_step(at: int, act: Act, check: Check, *, warm: bool = True, at_step: Callable[[Stage], object] | None = None) -> bool:
    """Runs ``act`` as a task and cancels it, or does ``at_step``, before step ``at``. False when the act ended before that.

    ``check`` gets whether the task was cancelled, and when the step came. ``warm``: the connection is there before.
    """
    loop = SteppedLoop(at)
    simulation = Simulation(0, Faults(latency=(LATENCY, LATENCY), routers=0.0))
    failures: list[dict[str, Any]] = []

    async def main() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda loop, context: failures.append(context))
        async with Stage(simulation) as stage:
            if warm:
                await stage.careful().call(Careful.let_go)
                stage.actor().release.clear()
            task = asyncio.ensure_future(act(stage))
            moment: list[float] = []

            def step() -> None:
                moment.append(loop.time())
                if at_step is None:
                    task.cancel()
                else:
                    at_step(stage)

            loop.watch_from_here(step)
            await asyncio.wait([task])
            cancelled, acted = task.cancelled(), loop.acted
            if not cancelled:
                task.result()
            await asyncio.sleep(SETTLED)
            await check(stage, cancelled, moment[0] if acted else 0.0)
            if acted:
                ends.append(True)

    ends: list[bool] = []
    with asyncio.Runner(loop_factory=lambda: loop) as runner:
        runner.run(main())
    assert [failure["message"] for failure in failures] == []
    return bool(ends)


def at_every_step(act: Act, check: Check, *, warm: bool = True, at_step: Callable[[Stage], object] | None = None) -> int:
    """Runs the act again and again, one step further each time, until it ends before the step comes. Returns the steps."""
    at = 0
    while run_to_step(at, act, check, warm=warm, at_step=at_step):
        at += 1
    return at
