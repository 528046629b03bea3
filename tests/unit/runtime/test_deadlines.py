"""Many deadlines, one timer for each length."""

import asyncio

from asyncrl.runtime import ActorSystem
from asyncrl.runtime.deadlines import CROWD, Deadlines
from asyncrl.runtime.site import CREDIT
from tests.unit.runtime.runtime_actors import Counter


class Item:
    def __init__(self) -> None:
        self.expires, self.expired = 0.0, asyncio.Event()

    def expire(self) -> None:
        self.expired.set()


async def test_each_item_expires_after_its_own_time_and_a_removed_one_never() -> None:
    deadlines = Deadlines(asyncio.get_running_loop())
    soon, later, removed = Item(), Item(), Item()
    deadlines.add(later, 0.06)
    deadlines.add(soon, 0.02)
    deadlines.add(removed, 0.02)
    deadlines.remove(removed, 0.02)
    await soon.expired.wait()
    assert not later.expired.is_set()
    await later.expired.wait()
    assert not removed.expired.is_set()


async def test_an_item_that_is_added_while_others_wait_gets_its_whole_time() -> None:
    loop = asyncio.get_running_loop()
    deadlines = Deadlines(loop)
    first, second = Item(), Item()
    deadlines.add(first, 0.05)
    await asyncio.sleep(0.03)
    start = loop.time()
    deadlines.add(second, 0.05)
    await second.expired.wait()
    assert first.expired.is_set()
    assert loop.time() - start >= 0.049


async def test_expiring_one_may_remove_another() -> None:
    deadlines = Deadlines(asyncio.get_running_loop())
    other = Item()

    class Remover(Item):
        def expire(self) -> None:
            deadlines.remove(other, 0.01)
            super().expire()

    remover = Remover()
    deadlines.add(remover, 0.01)
    deadlines.add(other, 0.01)
    await remover.expired.wait()
    await asyncio.sleep(0.03)
    assert not other.expired.is_set()


async def test_after_close_nothing_expires() -> None:
    deadlines = Deadlines(asyncio.get_running_loop())
    item = Item()
    deadlines.add(item, 0.01)
    deadlines.close()
    await asyncio.sleep(0.03)
    assert not item.expired.is_set()


async def test_lengths_that_nobody_needs_any_more_leave_neither_queue_nor_timer() -> None:
    deadlines = Deadlines(asyncio.get_running_loop())
    for number in range(10_000):
        item = Item()
        deadlines.add(item, 600.0 + number / 1000)
        deadlines.remove(item, 600.0 + number / 1000)
    assert len(deadlines) <= CROWD
    deadlines.close()


async def test_many_lengths_that_are_all_needed_are_all_kept_and_expire() -> None:
    deadlines = Deadlines(asyncio.get_running_loop())
    items = [Item() for _ in range(4 * CROWD)]
    for number, item in enumerate(items):
        deadlines.add(item, 0.05 + number / 10_000)
    assert len(deadlines) == len(items)
    for item in items:
        await item.expired.wait()
    assert len(deadlines) == 0


async def test_a_length_in_use_keeps_its_timer_while_others_come_and_go() -> None:
    deadlines = Deadlines(asyncio.get_running_loop())
    kept = Item()
    deadlines.add(kept, 0.1)
    for number in range(10 * CROWD):
        item = Item()
        deadlines.add(item, 60.0 + number)
        deadlines.remove(item, 60.0 + number)
    async with asyncio.timeout(3):
        await kept.expired.wait()
    again = Item()
    deadlines.add(again, 0.02)
    await again.expired.wait()
    deadlines.close()


async def test_one_that_expires_may_bring_so_many_lengths_that_old_ones_are_dropped() -> None:
    deadlines = Deadlines(asyncio.get_running_loop())
    last = Item()

    class Bringer(Item):
        def expire(self) -> None:
            for number in range(2 * CROWD):
                item = Item()
                deadlines.add(item, 60.0 + number)
                deadlines.remove(item, 60.0 + number)
            deadlines.add(last, 0.01)
            super().expire()

    deadlines.add(Bringer(), 0.01)
    async with asyncio.timeout(3):
        await last.expired.wait()
    deadlines.close()


async def test_calls_with_what_is_left_of_a_time_leave_no_timer_each() -> None:
    async with ActorSystem.local() as system:
        counter = await system.spawn(Counter, name="counter")
        for number in range(500):
            await counter.with_deadline(600.0 - number / 7).call(Counter.add, 1)
        assert len(system.deadlines) <= CROWD


async def test_calls_that_waited_for_credit_leave_no_timer_each() -> None:
    async with ActorSystem.local() as system:
        counter = await system.spawn(Counter, name="counter")

        async def some() -> None:
            for _ in range(3):
                await counter.call(Counter.add, 1)

        await asyncio.gather(*[some() for _ in range(2000)])
        assert len(system.deadlines) <= 2 * CREDIT
