"""Limits and names that cannot be: an error at who gives them, and nothing for anybody else."""

import asyncio
import math

import pytest

from asyncrl.errors import CallTimedOut, WireError
from asyncrl.runtime import Actor, ActorAddress, ActorGroup, ActorRef, ActorSystem, MemoryNetwork, endpoint
from asyncrl.runtime.plan import plan_of
from tests.unit.runtime.runtime_actors import Counter, Slow

LONG = "n" * 257
NO_TEXT = "lone \ud800"


@pytest.mark.parametrize("seconds", [-0.001, -5, -math.inf])
async def test_a_deadline_that_has_passed_ends_the_call_before_it_is_sent(seconds: float) -> None:
    async with ActorSystem.local() as system:
        slow, counter = await system.spawn(Slow, name="slow"), await system.spawn(Counter, name="counter")
        other = asyncio.ensure_future(slow.call(Slow.hang))
        await slow.call(Slow.has_started)
        late = counter.with_deadline(seconds)
        with pytest.raises(CallTimedOut, match=r"counter@main did not answer Counter.add \(.* not sent\)") as caught:
            await late.call(Counter.add, 1)
        assert caught.value.seconds == seconds
        with pytest.raises(CallTimedOut):
            await late.tell(Counter.add, 1)
        with pytest.raises(CallTimedOut):
            await anext(slow.with_deadline(seconds).stream(Slow.count, 3))
        with pytest.raises(CallTimedOut):
            await ActorGroup([counter]).with_deadline(seconds).call_all(Counter.add, 1)
        with pytest.raises(CallTimedOut):
            await (await system.spawn(Once, name="once")).with_deadline(seconds).call(Once.effect)
        assert await counter.call(Counter.add, 0) == 0
        assert not other.done()
        assert not system.refusals
        other.cancel()
        assert await slow.call(Slow.was_cancelled)


class Once(Actor):
    """Must not be reached."""

    @endpoint(idempotent=True)
    async def effect(self) -> None:
        raise AssertionError("a call whose deadline had passed")


async def test_no_deadline_and_an_endless_one_are_none() -> None:
    async with ActorSystem.local() as system:
        counter = await system.spawn(Counter, name="counter")
        for number, seconds in enumerate((0, 0.0, -0.0, math.inf, 1), 1):
            assert await counter.with_deadline(seconds).call(Counter.add, 1) == number


async def test_a_limit_that_is_no_length_of_time_is_refused_where_it_is_given() -> None:
    async with ActorSystem.local() as system:
        counter = await system.spawn(Counter, name="counter")
        with pytest.raises(ValueError, match="a deadline is a number of seconds, got nan"):
            counter.with_deadline(math.nan)
        for silence in (0.0, -1.0, -math.inf, math.nan):
            with pytest.raises(ValueError, match="a silence is a number of seconds above 0, got "):
                counter.watched(silence)


@pytest.mark.parametrize("name", [LONG, NO_TEXT])
async def test_a_name_that_cannot_travel_is_refused_where_it_is_given(name: str) -> None:
    async with ActorSystem.local() as system:
        with pytest.raises(WireError, match="the name of an actor"):
            await system.spawn(Counter, name=name)
        with pytest.raises(WireError, match="the name of a process"):
            await system.spawn(Counter, name="counter", process=name)
        for address in (ActorAddress("main", "memory://main", name), ActorAddress(name, "memory://main", "counter")):
            with pytest.raises(WireError, match=r"the name of an? (actor|process)"):
                system.ref(address, Counter)
    with pytest.raises(WireError, match="the name of a process"):
        ActorSystem.local(process=name)
    with pytest.raises(WireError, match="the role of a process"):
        ActorSystem.local(role=name)
    with pytest.raises(WireError, match="the attempt of a process"):
        ActorSystem.bind("here", "tcp://127.0.0.1:*", attempt=name)


async def test_the_longest_names_travel() -> None:
    longest, network = "\N{GREEK SMALL LETTER ALPHA}" * 256, MemoryNetwork()
    there, here = ActorSystem.local(process="t" * 256, network=network), ActorSystem.local(process=longest, network=network)
    async with there, here:
        await there.spawn(Counter, name=longest)
        ref: ActorRef[Counter] = here.ref(there.address(longest), Counter)
        assert await ref.call(Counter.add, 1) == 1
        assert await ref.with_deadline(5).call(Counter.add, 1) == 2


def test_an_endpoint_whose_name_cannot_travel_is_refused_at_its_first_use() -> None:
    async def short(self: Actor) -> None: ...

    short.__name__ = LONG
    marked = endpoint(short)
    with pytest.raises(WireError, match="the name of an endpoint"):
        plan_of(marked)
