"""A loop that stood still reads what came meanwhile before it calls anything late."""

import asyncio
import time
from collections.abc import Callable

import msgspec
import pytest

from asyncrl.errors import CallTimedOut
from asyncrl.runtime.codec import Codec
from asyncrl.runtime.deadlines import LATE, Deadlines
from asyncrl.runtime.outgoing import Window
from asyncrl.runtime.pending import Limit, Pending


def stand_still(seconds: float) -> None:
    """As code does that computes in the event loop, until it is ``seconds`` and more than ``LATE`` later."""
    time.sleep(seconds + LATE + 0.1)


def in_turns(number: int, act: Callable[[], None]) -> None:
    """Runs ``act`` after some turns of the loop, as a reply is read that has others before it."""
    loop = asyncio.get_running_loop()
    loop.call_soon(in_turns, number - 1, act) if number else act()


def answer(call: Pending) -> None:
    call.reply(msgspec.Raw(b"\x07"), [])


def pending(limit: Limit) -> Pending:
    made = Pending("who", "what", Codec(int), Window(1), limit, Deadlines(asyncio.get_running_loop()))
    made.arm()
    return made


async def test_a_reply_that_came_while_the_loop_stood_still_is_in_time() -> None:
    call = pending(Limit(deadline=0.05))
    stand_still(0.05)
    in_turns(20, lambda: answer(call))
    assert await call.future == 7
    call.disarm()


async def test_a_sign_of_progress_that_came_while_the_loop_stood_still_is_in_time() -> None:
    call = pending(Limit(deadline=0.0, silence=0.2))
    stand_still(0.2)
    in_turns(20, call.touch)
    in_turns(25, lambda: answer(call))
    assert await call.future == 7
    call.disarm()


@pytest.mark.parametrize("limit", [Limit(deadline=0.05), Limit(deadline=0.0, silence=0.05)])
async def test_one_that_never_came_is_still_a_timeout(limit: Limit) -> None:
    call = pending(limit)
    stand_still(0.05)
    with pytest.raises(CallTimedOut, match=r"who did not answer what( \(no sign of progress\))? within 0.05 s"):
        await call.future
    call.disarm()
