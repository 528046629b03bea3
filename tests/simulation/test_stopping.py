"""An actor stops although what it runs does not: its callers are answered, ``on_stop`` has its own time, its thread ends."""

import asyncio
from collections.abc import Callable
from typing import ClassVar, TypeVar, TypeVarTuple

import pytest

from asyncrl.errors import ActorDied
from asyncrl.runtime import Actor, ActorRef, ActorSystem, endpoint
from asyncrl.runtime.mailbox import STOP_SECONDS
from asyncrl.runtime.memory import MemoryNetwork, MemoryTransport
from asyncrl.runtime.own_thread import WorkerThread
from asyncrl.runtime.security import Identity
from asyncrl.runtime.simulation import SimulatedHost
from asyncrl.runtime.tasks import LAST_SECONDS, shielded

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

LONG = 1000.0


async def defy(seconds: float) -> None:
    """Takes its time, whoever cancels it."""
    loop = asyncio.get_running_loop()
    end = loop.time() + seconds
    while (left := end - loop.time()) > 0:
        try:
            await asyncio.sleep(left)
        except asyncio.CancelledError:
            continue


class Thread:
    """A thread whose functions take long."""

    def __init__(self) -> None:
        self.closed = False

    async def run(self, function: Callable[[*Ts], T], *args: *Ts) -> T:
        await defy(LONG)
        return function(*args)

    def close(self) -> None:
        self.closed = True


class Machine(SimulatedHost):
    """A host that remembers its actors' threads."""

    def __init__(self) -> None:
        super().__init__(1)
        self.threads: list[Thread] = []

    def own_thread(self, name: str) -> WorkerThread:
        self.threads.append(Thread())
        return self.threads[-1]


class Stubborn(Actor):
    """Nothing of it ends when it is told to, but for its ``on_stop``."""

    concurrency: ClassVar[int] = 0
    own_thread: ClassVar[bool] = True
    stopping: ClassVar[float] = 0.0
    background: ClassVar[float] = LONG

    def __init__(self) -> None:
        self.entered = asyncio.Event()
        self.stops: list[str] = []

    async def on_start(self) -> None:
        self.context.background(defy, self.background, name="background")

    async def on_stop(self) -> None:
        self.stops.append("begun")
        await asyncio.sleep(self.stopping)
        self.stops.append("ended")

    @endpoint
    async def work(self) -> int:
        self.entered.set()
        await defy(LONG)
        return 1

    @endpoint(idempotent=True)
    async def work_again(self) -> int:
        return await self.work()

    @endpoint
    def work_on_thread(self) -> int:
        return 1

    @endpoint
    async def has_entered(self) -> bool:
        await self.entered.wait()
        return True


class Slow(Stubborn):
    """Its ``on_stop`` needs nearly all the time it has."""

    stopping: ClassVar[float] = STOP_SECONDS - 0.5


class Failing(Stubborn):
    async def on_stop(self) -> None:
        self.stops.append("begun")
        raise KeyError("on_stop")


class Endless(Stubborn):
    """Its ``on_stop`` swallows a cancellation."""

    async def on_stop(self) -> None:
        self.stops.append("begun")
        await defy(LONG)


async def begun(system: ActorSystem, kind: type[Stubborn]) -> tuple[Stubborn, dict[str, "asyncio.Task[object]"]]:
    """An actor that serves calls which do not end."""
    ref: ActorRef[Stubborn] = (await system.spawn(kind, name="actor")).with_deadline(2 * LONG)
    methods: dict[str, Callable[..., object]] = {"async": Stubborn.work, "again": Stubborn.work_again, "thread": Stubborn.work_on_thread}
    calls = {name: asyncio.ensure_future(ref.call(method)) for name, method in methods.items()}
    await ref.call(Stubborn.has_entered)
    return system.instance("actor", Stubborn), calls


def machine() -> tuple[Machine, ActorSystem]:
    host = Machine()
    return host, ActorSystem(Identity("main"), host, MemoryTransport("memory://main", MemoryNetwork()))


async def all_over() -> None:
    """What did not end when it was told to has its time now."""
    await asyncio.sleep(2 * LONG)
    assert asyncio.all_tasks() == {asyncio.current_task()}


@pytest.mark.parametrize("kind", [Stubborn, Slow], ids=lambda kind: kind.__name__)
async def test_calls_that_do_not_end_are_answered_and_on_stop_has_its_whole_time(kind: type[Stubborn]) -> None:
    host, system = machine()
    loop = asyncio.get_running_loop()
    async with system:
        actor, calls = await begun(system, kind)
        start = loop.time()
        stopping = asyncio.ensure_future(system.stop("actor", "not needed"))
        for call in calls.values():
            with pytest.raises(ActorDied, match="actor died: not needed"):
                await call
        assert loop.time() - start < STOP_SECONDS + 1.0
        await stopping
        assert loop.time() - start < 3 * STOP_SECONDS
        assert actor.stops == ["begun", "ended"]
        assert [thread.closed for thread in host.threads] == [True]
        assert not system.waits.snapshot()
        await all_over()


async def test_an_on_stop_that_swallows_its_cancellation_does_not_keep_the_system_from_closing() -> None:
    host, system = machine()
    loop = asyncio.get_running_loop()
    actor, calls = await begun(system, Endless)
    start = loop.time()
    await system.close()
    assert loop.time() - start < 3 * STOP_SECONDS + LAST_SECONDS + 1.0
    assert actor.stops == ["begun"]
    assert [thread.closed for thread in host.threads] == [True]
    assert [type(end) for end in await asyncio.gather(*calls.values(), return_exceptions=True)] == [ActorDied] * 3
    await all_over()


async def test_an_on_stop_that_fails_is_told_and_the_thread_ends() -> None:
    host, system = machine()
    async with system:
        await system.spawn(Failing, name="actor")
        with pytest.raises(KeyError, match="on_stop"):
            await system.stop("actor")
        assert [thread.closed for thread in host.threads] == [True]
        await all_over()


async def test_who_is_cancelled_while_it_stops_an_actor_stops_it_all_the_same() -> None:
    host, system = machine()
    async with system:
        actor, _ = await begun(system, Slow)
        stopping = asyncio.ensure_future(system.stop("actor"))
        await asyncio.sleep(1.0)
        stopping.cancel()
        await asyncio.sleep(1.0)
        stopping.cancel()
        with pytest.raises(asyncio.CancelledError):
            await stopping
        assert actor.stops == ["begun", "ended"]
        assert [thread.closed for thread in host.threads] == [True]
        await all_over()


async def test_shielded_cleanup_that_swallows_its_cancellation_is_left_to_itself() -> None:
    loop = asyncio.get_running_loop()
    start = loop.time()
    async with shielded(2.0) as shield:
        assert not await shield.run(lambda: defy(LONG))
    assert loop.time() - start < 3 * (2.0 + LAST_SECONDS)
    await all_over()


async def test_shielded_cleanup_has_a_moment_after_its_time_to_end_well() -> None:
    async def ends_well() -> None:
        try:
            await asyncio.sleep(LONG)
        except asyncio.CancelledError:
            await asyncio.sleep(LAST_SECONDS / 2)

    async with shielded(2.0) as shield:
        assert await shield.run(ends_well)
