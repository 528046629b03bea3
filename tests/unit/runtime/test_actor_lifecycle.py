"""Actors in one process: start, stop, order, threads and context."""

import asyncio
import threading
from collections.abc import Iterator

import pytest

from asyncrl.errors import ActorDied, CallTimedOut
from asyncrl.runtime import Actor, ActorSystem, RealHost, endpoint
from tests.unit.runtime.runtime_actors import Counter, Slow


class Careful(Actor):
    """Keeps a log of its life."""

    def __init__(self, log: list[str]) -> None:
        self.log = log
        log.append(f"init {self.context.name}")
        self.running = 0
        self.gate = threading.Event()

    async def on_start(self) -> None:
        self.log.append("start")

    async def on_stop(self) -> None:
        self.log.append("stop")

    @endpoint
    async def enter(self, turns: int) -> int:
        self.running += 1
        most = self.running
        for _ in range(turns):
            await asyncio.sleep(0)
            most = max(most, self.running)
        self.running -= 1
        return most

    @endpoint
    def block(self) -> str:
        self.log.append("blocked")
        assert self.gate.wait(10)
        self.log.append("unblocked")
        self.context.progress()
        return threading.current_thread().name

    @endpoint
    async def who_calls(self) -> tuple[str, bool]:
        return self.context.caller, self.context.deadline is not None


@pytest.fixture
def log() -> Iterator[list[str]]:
    lines: list[str] = []
    yield lines  # noqa: PT022


async def test_a_local_actor_gets_the_very_objects_and_lives_from_start_to_stop(log: list[str]) -> None:
    async with ActorSystem.local() as system:
        await system.spawn(Careful, log, name="careful")
        assert log == ["init careful", "start"]
        with pytest.raises(ValueError, match="already has an actor 'careful'"):
            await system.spawn(Careful, log, name="careful")
    assert log == ["init careful", "start", "stop"]


async def test_one_call_runs_at_a_time_unless_the_actor_says_otherwise(log: list[str]) -> None:
    class Wide(Careful):
        concurrency = 2

    async with ActorSystem.local() as system:
        narrow = await system.spawn(Careful, log, name="narrow")
        wide = await system.spawn(Wide, log, name="wide")
        assert max(await asyncio.gather(*[narrow.call(Careful.enter, 5) for _ in range(6)])) == 1
        assert max(await asyncio.gather(*[wide.call(Careful.enter, 5) for _ in range(6)])) == 2


async def test_a_blocking_call_keeps_its_place_after_its_caller_left(log: list[str]) -> None:
    async with ActorSystem.local() as system:
        ref = await system.spawn(Careful, log, name="careful")
        instance = system._site.mailboxes["careful"].instance
        assert isinstance(instance, Careful)
        with pytest.raises(CallTimedOut):
            await ref.with_deadline(0.05).call(Careful.block)
        second = asyncio.ensure_future(ref.call(Careful.who_calls))
        await asyncio.sleep(0.01)
        assert not second.done()
        instance.gate.set()
        assert await second == ("main", True)
        assert log[-2:] == ["blocked", "unblocked"]
        assert await ref.watched(5).call(Careful.block) != threading.current_thread().name


async def test_a_queued_call_whose_caller_left_never_runs(log: list[str]) -> None:
    async with ActorSystem.local() as system:
        ref = await system.spawn(Careful, log, name="careful")
        instance = system._site.mailboxes["careful"].instance
        assert isinstance(instance, Careful)
        first = asyncio.ensure_future(ref.call(Careful.block))
        await asyncio.sleep(0.01)
        assert log[-1] == "blocked"
        with pytest.raises(CallTimedOut):
            await ref.with_deadline(0.02).call(Careful.block)
        instance.gate.set()
        await first
        await ref.call(Careful.who_calls)
        assert log.count("blocked") == 1


async def test_stopping_one_actor_answers_its_callers_and_frees_its_name() -> None:
    async with ActorSystem.local() as system:
        slow = await system.spawn(Slow, name="x")
        call = asyncio.ensure_future(slow.call(Slow.hang))
        await slow.call(Slow.has_started)
        await system.stop("x", "not needed")
        with pytest.raises(ActorDied, match="x died: not needed"):
            await call
        counter = await system.spawn(Counter, name="x")
        assert await counter.call(Counter.add, 1) == 1


async def test_a_failing_start_leaves_nothing_and_a_failing_stop_does_not_stop_others(
    log: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    class FailsToStart(Actor):
        async def on_start(self) -> None:
            raise KeyError("start")

    class FailsToStop(Actor):
        async def on_stop(self) -> None:
            raise KeyError("stop of one")

    async with ActorSystem.local() as system:
        await system.spawn(Careful, log, name="first")
        with pytest.raises(KeyError, match="start"):
            await system.spawn(FailsToStart, name="bad")
        await system.spawn(FailsToStop, name="last")
    assert log[-1] == "stop"
    assert "stop of one" in caplog.text


async def test_thirty_systems_start_and_stop_over_sockets(folder: str) -> None:
    for i in range(30):
        async with ActorSystem.bind("p", f"ipc://{folder}/p{i % 2}.sock", host=RealHost()) as system:
            ref = await system.spawn(Counter, name="c")
            assert await ref.call(Counter.add, 1) == 1
            await system.close()
