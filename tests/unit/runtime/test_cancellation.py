"""A caller that is cancelled at any step leaves nothing behind, and what it called stops at its next await."""

import asyncio
from collections.abc import AsyncGenerator

import pytest

from asyncrl.runtime import ActorGroup
from tests.unit.runtime.stepping import CREDIT, LATENCY, PAUSE, Act, Careful, Stage, at_every_step

SLACK = 0.002
"""Virtual seconds for the turns of the loop."""


async def call(stage: Stage) -> None:
    assert await stage.careful().call(Careful.work) == 1


async def watched_call(stage: Stage) -> None:
    assert await stage.careful().watched(1.0).call(Careful.work) == 1


async def idempotent_call(stage: Stage) -> None:
    assert await stage.careful().call(Careful.again) == 1


async def blocking_call(stage: Stage) -> None:
    assert await stage.careful().call(Careful.block) == 1


async def tell(stage: Stage) -> None:
    await stage.careful().tell(Careful.work)


async def queued_call(stage: Stage) -> None:
    """Behind another call that runs."""
    await stage.careful().tell(Careful.again)
    assert await stage.careful().call(Careful.work) == 2


async def call_without_credit(stage: Stage) -> None:
    """Waits until a credit comes back."""
    for _ in range(CREDIT):
        await stage.wide().tell(Careful.again)
    assert await stage.wide().call(Careful.work) == CREDIT + 1


async def tell_without_credit(stage: Stage) -> None:
    for _ in range(CREDIT):
        await stage.wide().tell(Careful.again)
    await stage.wide().tell(Careful.work)


async def stream(stage: Stage) -> None:
    assert [item async for item in stage.careful().stream(Careful.count, 20)] == list(range(20))


async def stream_with_pauses(stage: Stage) -> None:
    """The producer waits for credit."""
    async for _ in stage.careful().stream(Careful.count, 24):
        await asyncio.sleep(LATENCY)


async def group_call(stage: Stage) -> None:
    group = ActorGroup([stage.careful(), stage.careful(stage.second)])
    assert await group.call_all(Careful.work) == [1, 1]


async def collective_call(stage: Stage) -> None:
    group = ActorGroup([stage.careful(), stage.careful(stage.second)])
    assert await group.call_all(Careful.together) == [1, 1]


ACTS = [
    call, watched_call, idempotent_call, blocking_call, tell, queued_call, call_without_credit, tell_without_credit, stream,
    stream_with_pauses, group_call, collective_call,
]  # fmt: skip


async def nothing_is_left(stage: Stage, cancelled: bool, moment: float) -> None:
    """Whatever the step was."""
    actors = [stage.actor(), stage.actor("wide"), stage.actor(where=stage.second)]
    assert all(actor.effects <= CREDIT + 1 for actor in actors)
    if cancelled:
        # The word needs its way; a step that had begun by then is the last one.
        last = max((time for actor in actors for time in actor.steps), default=0.0)
        assert last <= moment + LATENCY + PAUSE + SLACK
    await stage.check_quiet()


@pytest.mark.parametrize("warm", [True, False], ids=["over a connection", "with the first connection"])
@pytest.mark.parametrize("act", ACTS, ids=lambda act: act.__name__)
def test_a_caller_that_is_cancelled_at_any_step_leaves_nothing_behind(act: Act, warm: bool) -> None:
    assert at_every_step(act, nothing_is_left, warm=warm) > 1


@pytest.mark.parametrize("act", ACTS, ids=lambda act: act.__name__)
def test_a_callee_that_is_stopped_at_any_step_leaves_nobody_waiting(act: Act) -> None:
    """The calls end at once, with a result or an error, long before their deadline."""

    async def check(stage: Stage, cancelled: bool, moment: float) -> None:
        for system in stage.systems:
            assert system.waits.snapshot() == []

    async def in_time(stage: Stage) -> None:
        start = asyncio.get_running_loop().time()
        await asyncio.gather(act(stage), return_exceptions=True)
        assert asyncio.get_running_loop().time() < start + 1.0

    stopping: list[asyncio.Task[None]] = []

    def stop(stage: Stage) -> None:
        for name in ("careful", "wide"):
            stopping.append(asyncio.ensure_future(stage.there.stop(name, "not needed")))

    assert at_every_step(in_time, check, at_step=stop) > 1


def test_a_stream_that_is_left_at_any_item_stops_its_producer() -> None:
    async def leave(stage: Stage) -> None:
        items: AsyncGenerator[int, None] = stage.careful().stream(Careful.count, 1000)
        async for item in items:
            if item == 5:
                break
        await items.aclose()

    async def check(stage: Stage, cancelled: bool, moment: float) -> None:
        assert len(stage.actor().steps) < 60
        await stage.check_quiet()

    assert at_every_step(leave, check) > 3
