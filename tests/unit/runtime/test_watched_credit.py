"""Watched calls that wait for credit: the actor's silence ends them, its progress does not."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest

from asyncrl.errors import CallTimedOut
from asyncrl.runtime import ActorRef, ActorSystem, RealHost
from asyncrl.runtime.memory import MemoryNetwork, MemoryTransport
from asyncrl.runtime.outgoing import Window
from asyncrl.runtime.security import Identity
from tests.unit.runtime.runtime_actors import Slow
from tests.unit.runtime.test_late_deadlines import in_turns, stand_still

SILENCE = 0.3


@pytest.fixture
async def slow() -> AsyncIterator[ActorRef[Slow]]:
    """An actor of another process; the caller may have one unanswered call to it."""
    network = MemoryNetwork()
    async with (
        ActorSystem.local(process="server", network=network) as server,
        ActorSystem(Identity("client", role="controller"), RealHost(), MemoryTransport("memory://client", network), credit=1) as client,
    ):
        yield client.ref((await server.spawn(Slow, name="slow")).address, Slow)


async def ask(ref: ActorRef[Slow]) -> None:
    await ref.call(Slow.made)


async def tell(ref: ActorRef[Slow]) -> None:
    await ref.tell(Slow.let_go)


async def stream(ref: ActorRef[Slow]) -> None:
    await anext(ref.stream(Slow.count, 3))


@pytest.mark.parametrize("act", [ask, tell, stream])
async def test_who_waits_for_the_credit_of_a_silent_actor_is_told_after_its_silence(
    slow: ActorRef[Slow], act: Callable[[ActorRef[Slow]], Awaitable[Any]]
) -> None:
    hanging = asyncio.ensure_future(slow.with_deadline(0.0).call(Slow.hang))
    await asyncio.sleep(0)
    async with asyncio.timeout(3 * SILENCE):
        with pytest.raises(CallTimedOut, match=r"slow@server did not answer credit for Slow\.\w+ \(no sign of progress\) within 0.3 s"):
            await act(slow.watched(SILENCE))
    hanging.cancel()
    await asyncio.wait([hanging])
    # Nothing of it is left: the next one gets the credit.
    assert await slow.call(Slow.made) == 0


async def test_progress_of_the_call_that_has_the_credit_keeps_the_others_waiting(slow: ActorRef[Slow]) -> None:
    pauses = [SILENCE / 3] * 5
    working = asyncio.ensure_future(slow.watched(SILENCE).call(Slow.steps, pauses))
    await asyncio.sleep(0)
    assert await slow.watched(SILENCE).call(Slow.made) == 0
    assert working.done()
    assert await working == len(pauses)


async def test_items_of_a_stream_keep_others_waiting(slow: ActorRef[Slow]) -> None:
    waiting: asyncio.Task[int] | None = None
    items = 0
    async for _ in slow.stream(Slow.count, 100):
        items += 1
        waiting = waiting or asyncio.ensure_future(slow.watched(SILENCE).call(Slow.made))
        # The last 16 are on their way when the producer has ended.
        if items % 16 == 0 and items <= 80:
            await asyncio.wait([waiting], timeout=SILENCE / 3)
            assert not waiting.done()
    assert waiting is not None
    assert await waiting == 100


async def test_each_credit_that_comes_back_is_a_sign_to_all_who_wait() -> None:
    window = Window(0)
    waiting = [asyncio.ensure_future(window.acquire(SILENCE)) for _ in range(4)]
    for place, each in enumerate(waiting):
        done, _ = await asyncio.wait(waiting[place:], timeout=SILENCE / 2)
        assert not done
        window.release()
        assert await each
    assert (window.free, len(window.waiters)) == (0, 0)


async def test_a_silent_window_lets_all_go_and_keeps_its_credit() -> None:
    window = Window(0)
    loop = asyncio.get_running_loop()
    begun = loop.time()
    assert await asyncio.gather(*[window.acquire(SILENCE) for _ in range(3)]) == [False] * 3
    assert SILENCE <= loop.time() - begun < 3 * SILENCE
    assert not window.waiters
    window.release()
    assert window.free == 1


async def test_a_credit_that_came_while_the_loop_stood_still_is_in_time() -> None:
    window = Window(0)
    waiting = asyncio.ensure_future(window.acquire(SILENCE))
    await asyncio.sleep(0)
    stand_still(SILENCE)
    in_turns(20, window.release)
    assert await waiting
