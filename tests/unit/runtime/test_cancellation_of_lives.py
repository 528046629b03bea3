"""Starting and stopping actors and systems, cancelled at any step: nothing half-way is left."""

import asyncio
from collections.abc import Awaitable

import pytest

from asyncrl.errors import ActorDied
from asyncrl.runtime import Actor, endpoint
from tests.unit.runtime.stepping import PAUSE, Careful, Stage, at_every_step


class Slow(Actor):
    """Takes its time to start and to stop, and works in the background meanwhile."""

    def __init__(self, log: list[str]) -> None:
        self.log = log

    async def _beat(self) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            self.log.append("background ended")

    async def on_start(self) -> None:
        self.context.background(self._beat, name="beat")
        await asyncio.sleep(PAUSE)
        self.log.append("started")

    async def on_stop(self) -> None:
        await asyncio.sleep(PAUSE)
        self.log.append("stopped")

    @endpoint
    async def hang(self) -> None:
        await asyncio.Event().wait()


async def whole(stage: Stage, cancelled: bool, moment: float) -> None:
    """Nothing waits and nothing runs."""
    for system in stage.systems:
        assert system.waits.snapshot() == []
    assert asyncio.all_tasks() == {asyncio.current_task()}


def test_an_actor_whose_start_is_cancelled_at_any_step_is_not_there() -> None:
    log: list[str] = []

    def start(stage: Stage) -> Awaitable[object]:
        log.clear()
        return stage.there.spawn(Slow, log, name="slow")

    async def check(stage: Stage, cancelled: bool, moment: float) -> None:
        if cancelled:
            assert log in ([], ["background ended"])
            await whole(stage, cancelled, moment)
            await stage.there.spawn(Slow, log, name="slow")
        assert log[-1] == "started"

    assert at_every_step(start, check) > 1


def test_an_actor_whose_start_fails_leaves_no_background() -> None:
    log: list[str] = []

    class Fails(Slow):
        async def on_start(self) -> None:
            self.context.background(self._beat, name="beat")
            await asyncio.sleep(PAUSE)
            raise KeyError("start")

    async def start(stage: Stage) -> None:
        with pytest.raises(KeyError, match="start"):
            await stage.there.spawn(Fails, log, name="slow")
        assert log[-1] == "background ended"

    assert at_every_step(start, whole) > 1


async def prepare(stage: Stage, log: list[str], calls: list[asyncio.Task[None]]) -> None:
    """Two slow actors, each with a call that hangs."""
    for name in ("first", "second"):
        await stage.there.spawn(Slow, log, name=name)
        ref = stage.here.ref(stage.there.address(name), Slow)
        calls.append(asyncio.ensure_future(ref.with_deadline(1000.0).call(Slow.hang)))
    await asyncio.sleep(1.0)


def test_stopping_an_actor_ends_it_at_whatever_step_it_is_cancelled() -> None:
    log: list[str] = []
    calls: list[asyncio.Task[None]] = []

    async def stop(stage: Stage) -> None:
        log.clear()
        await prepare(stage, log, calls)
        await stage.there.stop("first", "not needed")

    async def check(stage: Stage, cancelled: bool, moment: float) -> None:
        if "stopped" in log:
            assert [entry for entry in log if entry != "started"] == ["background ended", "stopped"]
            with pytest.raises(ActorDied, match="not needed"):
                await calls[0]
            assert await stage.there.spawn(Careful, name="first")
        await give_up(calls)

    assert at_every_step(stop, check) > 5


def test_closing_a_system_ends_all_of_it_at_whatever_step_it_is_cancelled() -> None:
    log: list[str] = []
    calls: list[asyncio.Task[None]] = []

    async def close(stage: Stage) -> None:
        log.clear()
        await prepare(stage, log, calls)
        try:
            log.append("closing")
            await stage.there.close("going home")
        finally:
            # Whoever leaves the block of a system leaves it closed, also when cancelled.
            assert log[log.index("closing") + 1 :] == ["background ended", "stopped"] * 2

    async def check(stage: Stage, cancelled: bool, moment: float) -> None:
        if "closing" in log:
            for call in calls:
                assert call.done()
                with pytest.raises(ActorDied, match="going home"):
                    await call
            await whole(stage, cancelled, moment)
        await give_up(calls)

    assert at_every_step(close, check) > 5


async def give_up(calls: list[asyncio.Task[None]]) -> None:
    """Whatever became of them."""
    for call in calls:
        call.cancel()
    await asyncio.gather(*calls, return_exceptions=True)
    calls.clear()
