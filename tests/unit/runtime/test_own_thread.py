"""Plain functions of an actor that has a thread of its own."""

import asyncio
import threading
from typing import ClassVar

from asyncrl.runtime import Actor, ActorSystem, endpoint


class OnItsThread(Actor):
    """Says on which thread it is, and in which order it was called."""

    concurrency: ClassVar[int] = 0
    own_thread: ClassVar[bool] = True

    def __init__(self) -> None:
        self.order: list[int] = []

    @endpoint
    def thread(self, number: int) -> str:
        self.order.append(number)
        return threading.current_thread().name

    @endpoint
    async def seen(self) -> list[int]:
        return self.order


class OnAnyThread(Actor):
    """Says on which thread it is."""

    @endpoint
    def thread(self) -> str:
        return threading.current_thread().name


async def test_all_functions_run_on_one_thread_in_their_order_and_it_ends_with_the_actor() -> None:
    async with ActorSystem.local() as system:
        ref = await system.spawn(OnItsThread, name="device")
        names = await asyncio.gather(*(ref.call(OnItsThread.thread, number) for number in range(20)))
        assert len(set(names)) == 1
        assert names[0].startswith("device")
        assert await ref.call(OnItsThread.seen) == list(range(20))
        other = await system.spawn(OnAnyThread, name="other")
        assert await other.call(OnAnyThread.thread) != names[0]
    for thread in threading.enumerate():
        if thread.name == names[0]:
            thread.join(5)
    assert names[0] not in [thread.name for thread in threading.enumerate()]
