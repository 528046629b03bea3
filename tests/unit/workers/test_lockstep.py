"""Sessions that ask together: nobody waits for ever, and who waits is listed."""

import asyncio
from collections.abc import AsyncIterator

import pytest
from hypothesis import given, settings, strategies as st

from asyncrl.runtime import ActorSystem
from asyncrl.runtime.waits import WaitRegistry
from asyncrl.workers.lockstep import Lockstep


@pytest.fixture
async def waits() -> AsyncIterator[WaitRegistry]:
    async with ActorSystem.local() as system:
        yield system.waits


async def turns() -> None:
    """Let what can go on go on."""
    for _ in range(3):
        await asyncio.sleep(0)


async def test_all_go_on_when_the_last_asks_and_until_then_they_are_listed(waits: WaitRegistry) -> None:
    lockstep = Lockstep(waits)
    lockstep.enter(3)
    asking = [asyncio.create_task(lockstep.turn()) for _ in range(2)]
    await turns()
    assert not any(task.done() for task in asking)
    assert [(wait.who, wait.what) for wait in waits.snapshot()] == [("sessions", "all of them to ask, for full determinism")] * 2
    await asyncio.wait_for(lockstep.turn(), 10)
    await asyncio.wait_for(asyncio.gather(*asking), 10)
    assert waits.snapshot() == []


async def test_more_who_ask_than_are_left_go_on(waits: WaitRegistry) -> None:
    lockstep = Lockstep(waits)
    lockstep.enter(4)
    # One session asks twice at once; then the group of the three others ends.
    asking = [asyncio.create_task(lockstep.turn()) for _ in range(2)]
    await turns()
    lockstep.leave(3)
    await asyncio.wait_for(asyncio.gather(*asking), 10)


async def test_one_session_that_asks_several_times_at_once_goes_on(waits: WaitRegistry) -> None:
    lockstep = Lockstep(waits)
    lockstep.enter(1)
    await asyncio.wait_for(asyncio.gather(*(lockstep.turn() for _ in range(3))), 10)


@settings(max_examples=40, deadline=None)
@given(st.lists(st.lists(st.integers(1, 3), max_size=3), min_size=1, max_size=5), st.data())
def test_sessions_that_ask_as_often_at_once_as_they_like_all_end(sessions: list[list[int]], data: st.DataObject) -> None:
    """Each session asks so many times at once, in turns; some are cancelled on the way, all of which leave together."""
    cancelled = data.draw(st.sets(st.integers(0, len(sessions) - 1)))

    async def lead(lockstep: Lockstep, asks: list[int]) -> None:
        for count in asks:
            await asyncio.gather(*(lockstep.turn() for _ in range(count)))

    async def one(lockstep: Lockstep, number: int) -> None:
        try:
            await lead(lockstep, sessions[number])
        finally:
            if number not in cancelled:
                lockstep.leave()

    async def main() -> None:
        async with ActorSystem.local() as system:
            lockstep = Lockstep(system.waits)
            lockstep.enter(len(sessions))
            tasks = [asyncio.create_task(one(lockstep, number)) for number in range(len(sessions))]
            await turns()
            for number in sorted(cancelled):
                tasks[number].cancel()
            lockstep.leave(len(cancelled))
            async with asyncio.timeout(10):
                await asyncio.gather(*tasks, return_exceptions=True)

    asyncio.run(main())
