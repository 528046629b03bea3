"""Groups: order, first failure, and the sequence numbers of collectives."""

import asyncio
from typing import Any

import pytest

from asyncrl.errors import CallFailed, CallTimedOut, WireError
from asyncrl.runtime import ActorGroup, ActorRef, ActorSystem
from tests.unit.runtime.runtime_actors import Counter, Slow


async def counters(system: ActorSystem, count: int) -> list[ActorRef[Counter]]:
    return [await system.spawn(Counter, 10 * i, name=f"c{i}") for i in range(count)]


async def test_results_come_in_member_order() -> None:
    async with ActorSystem.local() as system:
        group = ActorGroup(await counters(system, 3))
        assert await group.call_all(Counter.add, 1) == [1, 11, 21]
        assert await group.watched(60).call_each(Counter.add, [(1,), (2,), (3,)]) == [2, 13, 24]
        assert len(group) == 3
        with pytest.raises(ValueError, match="3 members, arguments for 1"):
            await group.call_each(Counter.add, [(1,)])


async def test_the_first_failure_cancels_the_rest() -> None:
    async with ActorSystem.local() as system:
        refs = [await system.spawn(Slow, name=f"s{i}") for i in range(2)]
        group = ActorGroup(refs)
        with pytest.raises(CallTimedOut):
            await group.with_deadline(0.05).call_all(Slow.hang)
        for ref in refs:
            assert await ref.call(Slow.was_cancelled)


async def test_a_collective_has_one_order_on_all_members() -> None:
    async with ActorSystem.local() as system:
        refs = await counters(system, 2)
        group = ActorGroup(refs)
        assert await group.call_all(Counter.together, 1) == [1, 11]
        # Another view of the same members shares the numbers.
        assert await ActorGroup(refs).with_deadline(5).call_all(Counter.together, 1) == [2, 12]
        with pytest.raises(WireError, match=r"Counter\.together is collective; call it through an ActorGroup"):
            await refs[0].call(Counter.together, 1)
        assert await ActorGroup(refs[:1]).call_all(Counter.add, 0) == [2]
        with pytest.raises(WireError, match=r"c0: collective .* has sequence number 0, this member expects 2"):
            await ActorGroup(refs[:1]).call_all(Counter.together, 1)
        assert await group.call_all(Counter.together, 1) == [3, 13]


@pytest.mark.parametrize("anew", [[0], [1], [0, 1]], ids=str)
async def test_a_member_that_was_started_anew_goes_on_with_the_numbers_of_its_group(anew: list[int]) -> None:
    async with ActorSystem.local() as system:
        group = ActorGroup(await counters(system, 2))
        for done in range(3):
            assert await group.call_all(Counter.together, 1) == [1 + done, 11 + done]
        for number in anew:
            await system.stop(f"c{number}")
            await system.spawn(Counter, 100, name=f"c{number}")
        totals = [101 if number in anew else 4 + 10 * number for number in range(2)]
        assert await group.call_all(Counter.together, 1) == totals
        assert await ActorGroup(group.refs).call_all(Counter.together, 1) == [total + 1 for total in totals]
        # It has one order with the others from its first call on.
        with pytest.raises(WireError, match=r"c1: collective .* has sequence number 0, this member expects 5"):
            await ActorGroup(group.refs[1:]).call_all(Counter.together, 1)


async def test_what_cannot_travel_to_one_member_reaches_none() -> None:
    async with ActorSystem.local() as system:
        group = ActorGroup(await counters(system, 3))
        for place in range(3):
            values: list[tuple[Any, ...]] = [(1,), (1,), (1,)]
            values[place] = (object(),)
            with pytest.raises(WireError, match="cannot encode the arguments"):
                await group.call_each(Counter.together, values)
        assert await group.call_all(Counter.together, 1) == [1, 11, 21]


async def test_a_member_that_missed_a_collective_refuses_until_it_is_started_anew() -> None:
    async with ActorSystem.local() as system:
        refs = await counters(system, 2)
        group = ActorGroup(refs)
        assert await group.call_all(Counter.together, 1) == [1, 11]
        # As when the call to one of them is lost on its way.
        number = system.collective_number(tuple(ref.address for ref in refs))
        assert await refs[0].numbered_call(number, Counter.together, 1) == 2
        for _ in range(2):
            with pytest.raises(WireError, match=r"c1: .* has sequence number \d, this member expects 1.*start it anew"):
                await group.call_all(Counter.together, 1)
            # It has no part in a later one while the others may be in this.
            assert system.instance("c1", Counter).total == 11
        await system.stop("c1")
        await system.spawn(Counter, 10, name="c1")
        first, second = await group.call_all(Counter.together, 1)
        assert (first > 2, second) == (True, 11)


async def test_a_group_needs_members() -> None:
    with pytest.raises(ValueError, match="at least one"):
        ActorGroup([])


async def test_a_member_that_fails_is_the_groups_failure() -> None:
    async with ActorSystem.local() as system:
        group = ActorGroup(await counters(system, 2))
        async with asyncio.timeout(5):
            with pytest.raises(CallFailed, match="boom"):
                await group.call_all(Counter.fail, "boom")
