"""The line for room, by hand: whoever leaves it, and however a put ends, the next in turn gets what is free."""

import asyncio

import pytest

from asyncrl.errors import QueueFull
from asyncrl.runtime import RealHost
from asyncrl.transfer_queue.budget import Budget


class Memory:
    """What rows take, and what of it can be squeezed out."""

    def __init__(self, used: int, dead: int = 0) -> None:
        self.used, self.dead = used, dead

    def squeeze(self) -> bool:
        """Frees what is dead."""
        freed, self.dead = self.dead, 0
        self.used -= freed
        return freed > 0


def budget_of(memory: Memory, generation: int = 0) -> Budget:
    return Budget(0, 100, lambda: memory.used, memory.squeeze, RealHost(), generation)


async def waits(budget: Budget, needed: int) -> "asyncio.Task[int]":
    """A producer in the line."""
    before = len(budget.waiting())
    task = asyncio.ensure_future(budget.room("main", needed))
    await asyncio.sleep(0)
    assert len(budget.waiting()) == before + 1
    return task


async def soon(task: "asyncio.Task[int]") -> int:
    async with asyncio.timeout(3):
        return await task


async def test_the_room_of_a_put_that_failed_is_for_the_next() -> None:
    memory = Memory(100)
    budget = budget_of(memory)
    first, second = await waits(budget, 40), await waits(budget, 40)
    memory.used = 60
    budget.freed()
    ticket = await soon(first)
    assert not second.done()
    budget.settle(ticket)
    assert await soon(second) > ticket
    budget.close()


async def test_a_put_that_takes_less_than_its_room_leaves_the_rest_to_the_next() -> None:
    memory = Memory(100)
    budget = budget_of(memory)
    first, second = await waits(budget, 40), await waits(budget, 20)
    memory.used = 60
    budget.freed()
    ticket = await soon(first)
    budget.admit(40, ticket)
    memory.used += 20
    budget.settle(ticket)
    await soon(second)
    budget.close()


async def test_a_producer_that_leaves_as_room_is_made_takes_none_of_it() -> None:
    memory = Memory(100)
    budget = budget_of(memory)
    first, second = await waits(budget, 40), await waits(budget, 40)
    memory.used = 60
    # It is told to leave, and has not run since.
    first.cancel()
    budget.freed()
    await soon(second)
    with pytest.raises(asyncio.CancelledError):
        await first
    with pytest.raises(QueueFull):
        budget.admit(1, 0)
    budget.close()


async def test_room_that_was_given_to_a_producer_who_left_is_for_the_next() -> None:
    memory = Memory(100)
    budget = budget_of(memory)
    first, second = await waits(budget, 40), await waits(budget, 40)
    memory.used = 60
    # It is told that there is room, and to leave, and has not run since.
    budget.freed()
    first.cancel()
    await soon(second)
    with pytest.raises(asyncio.CancelledError):
        await first
    budget.close()


async def test_a_ticket_of_an_earlier_life_takes_nobodys_room() -> None:
    memory = Memory(60)
    before, after = budget_of(memory), budget_of(memory, generation=1)
    old = await before.room("old", 40)
    new = await after.room("new", 40)
    with pytest.raises(QueueFull):
        after.admit(40, old)
    after.settle(old)
    with pytest.raises(QueueFull):
        after.admit(1, 0)
    after.admit(40, new)
    before.close()
    after.close()


async def test_what_is_dead_is_squeezed_out_before_anybody_waits_for_it() -> None:
    memory = Memory(100, dead=30)
    budget = budget_of(memory)
    budget.admit(30, 0)
    assert memory.used == 70
    memory.used = 100
    late = await waits(budget, 10)
    memory.dead = 10
    budget.freed()
    await soon(late)
    budget.close()
