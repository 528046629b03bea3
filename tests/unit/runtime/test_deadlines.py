"""Many deadlines, one timer for each length."""

import asyncio

from asyncrl.runtime.deadlines import Deadlines


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
