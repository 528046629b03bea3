"""The actor system of ``debug=inline``: everything here, and nothing times out."""

import asyncio

import pytest

from asyncrl.launch.inline import InlineSystem
from asyncrl.runtime.actor import Actor, endpoint
from asyncrl.runtime.group import ActorGroup


class Sleeper(Actor):
    """Answers when it is woken, and fails in the background when it is told to."""

    concurrency = 0

    def __init__(self, woken: asyncio.Event) -> None:
        self.woken = woken

    @endpoint
    async def sleep(self) -> str:
        """Wait to be woken."""
        await self.woken.wait()
        return self.context.system.process

    @endpoint
    async def fail(self) -> None:
        """Let a background function raise."""
        self.context.background(self._broken, name="broken")

    async def _broken(self) -> None:
        raise ZeroDivisionError("in the background")


async def test_an_actor_that_would_get_a_process_of_its_own_lives_here() -> None:
    async with InlineSystem.local(process="here") as system:
        ref = await system.spawn(Sleeper, asyncio.Event(), name="one", process="elsewhere")
        assert (ref.address.process, ref.address.actor) == ("here", "one")


async def test_no_deadline_and_no_silence_ends_a_call() -> None:
    async with InlineSystem.local() as system:
        woken = asyncio.Event()
        ref = await system.spawn(Sleeper, woken, name="one")
        asyncio.get_running_loop().call_later(0.1, woken.set)
        group = ActorGroup([ref]).watched(0.01).with_deadline(0.01)
        one, two, [three] = await asyncio.gather(
            ref.with_deadline(0.01).call(Sleeper.sleep), ref.watched(0.01).call(Sleeper.sleep), group.call_all(Sleeper.sleep)
        )
        assert one == two == three == "main"


async def test_an_error_in_the_background_of_an_actor_ends_the_supervised_block_as_itself() -> None:
    async with InlineSystem.local() as system:
        ref = await system.spawn(Sleeper, asyncio.Event(), name="one")

        async def body() -> None:
            async with system.supervised():
                await ref.call(Sleeper.fail)
                await ref.call(Sleeper.sleep)

        with pytest.raises(ZeroDivisionError, match="in the background"):
            await body()
