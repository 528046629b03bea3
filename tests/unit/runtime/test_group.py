"""Groups: order, first failure, and the sequence numbers of collectives."""

import asyncio

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


async def test_a_group_needs_members() -> None:
    with pytest.raises(ValueError, match="at least one"):
        ActorGroup([])


async def test_a_member_that_fails_is_the_groups_failure() -> None:
    async with ActorSystem.local() as system:
        group = ActorGroup(await counters(system, 2))
        async with asyncio.timeout(5):
            with pytest.raises(CallFailed, match="boom"):
                await group.call_all(Counter.fail, "boom")
