"""What every rendezvous promises: in memory, and at a plain address."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest

from asyncrl.errors import ActorDied
from asyncrl.runtime import ActorSystem, AddressRendezvous, Board, MemoryRendezvous, RealHost, Rendezvous
from tests.faults.byte_proxy import ByteProxy


@pytest.fixture(params=["memory", "address"])
async def pair(request: pytest.FixtureRequest) -> AsyncIterator[tuple[Rendezvous, Rendezvous]]:
    if request.param == "memory":
        shared = MemoryRendezvous()
        yield shared, shared
        return
    async with ActorSystem.bind("board", "tcp://127.0.0.1:*", host=RealHost()) as server:
        await server.spawn(Board, name="rendezvous")
        async with (
            ActorSystem.bind("one", "tcp://127.0.0.1:*", host=RealHost()) as one,
            ActorSystem.bind("two", "tcp://127.0.0.1:*", host=RealHost()) as two,
        ):
            yield AddressRendezvous(one, server.endpoint, "board"), AddressRendezvous(two, server.endpoint, "board")


async def test_a_value_is_seen_by_the_other(pair: tuple[Rendezvous, Rendezvous]) -> None:
    here, there = pair
    assert await there.get("k") is None
    await here.set("k", b"v")
    assert await there.get("k") == b"v"
    assert await there.wait("k") == b"v"


async def test_who_waits_is_woken_and_a_wait_can_be_bounded(pair: tuple[Rendezvous, Rendezvous]) -> None:
    here, there = pair
    waiting = asyncio.ensure_future(there.wait("later"))
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.05):
            await there.wait("never")
    await here.set("later", b"1")
    async with asyncio.timeout(10):
        assert await waiting == b"1"


async def test_a_board_may_start_later_than_those_who_look_for_it() -> None:
    async with ActorSystem.bind("finder", "tcp://127.0.0.1:*", host=RealHost()) as free:
        endpoint = free.endpoint
    async with ActorSystem.bind("one", "tcp://127.0.0.1:*", host=RealHost()) as one:
        found = asyncio.ensure_future(AddressRendezvous(one, endpoint, "board").wait("k"))
        await asyncio.sleep(0.1)
        async with ActorSystem.bind("board", endpoint, host=RealHost()) as server:
            await server.spawn(Board, name="rendezvous")
            await AddressRendezvous(one, endpoint, "board").set("k", b"v")
            async with asyncio.timeout(20):
                assert await found == b"v"


NOBODY = "tcp://127.0.0.1:1"
LOOKS: dict[str, Callable[[Rendezvous], Awaitable[Any]]] = {
    "set": lambda board: board.set("k", b"v"),
    "get": lambda board: board.get("k"),
    "wait": lambda board: board.wait("k"),
}


async def until(what: Awaitable[Any], seconds: float, match: str) -> None:
    """Checks that it ends with ActorDied within three times ``seconds``."""
    async with asyncio.timeout(3 * seconds):
        with pytest.raises(ActorDied, match=match):
            await what


async def begun(system: ActorSystem) -> None:
    """Returns when a call of the system has been sent."""
    for _ in range(100):
        if system.waits.snapshot():
            return
        await asyncio.sleep(0)
    raise AssertionError("nothing was sent")


@pytest.mark.parametrize("look", LOOKS.values(), ids=LOOKS)
async def test_who_looks_for_a_board_that_is_not_there_ends_with_its_own_system(look: Callable[[Rendezvous], Awaitable[Any]]) -> None:
    async with ActorSystem.bind("one", "tcp://127.0.0.1:*", host=RealHost()) as one:
        looking = asyncio.ensure_future(look(AddressRendezvous(one, NOBODY, "board")))
        await begun(one)
        await one.close()
        await until(looking, 0.5, "one died: (closed|the system is closed)")
        await until(look(AddressRendezvous(one, NOBODY, "board")), 0.1, "the system is closed")


@pytest.mark.parametrize("look", LOOKS.values(), ids=LOOKS)
async def test_who_looks_for_a_board_that_is_known_to_be_dead_is_told(look: Callable[[Rendezvous], Awaitable[Any]]) -> None:
    async with ActorSystem.bind("one", "tcp://127.0.0.1:*", host=RealHost()) as one:
        looking = asyncio.ensure_future(look(AddressRendezvous(one, NOBODY, "board")))
        await begun(one)
        one.peer_died("board", "exit code 3")
        for each in (looking, look(AddressRendezvous(one, NOBODY, "board"))):
            await until(each, 0.5, "board died: exit code 3")


async def test_a_board_that_leaves_ends_the_waits_for_it() -> None:
    async with ActorSystem.bind("one", "tcp://127.0.0.1:*", host=RealHost()) as one:
        async with ActorSystem.bind("board", "tcp://127.0.0.1:*", host=RealHost()) as server:
            await server.spawn(Board, name="rendezvous")
            board = AddressRendezvous(one, server.endpoint, "board")
            assert await board.get("k") is None
            waiting = asyncio.ensure_future(board.wait("k"))
            await begun(one)
        await until(waiting, 1.0, "closed")


async def test_a_look_can_be_bounded_while_nobody_listens() -> None:
    async with ActorSystem.bind("one", "tcp://127.0.0.1:*", host=RealHost()) as one:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05):
                await AddressRendezvous(one, NOBODY, "board").wait("k")


async def test_a_set_that_is_sent_again_takes_back_nothing_that_came_between() -> None:
    async with (
        ActorSystem.bind("board", "tcp://127.0.0.1:*", host=RealHost()) as server,
        ActorSystem.bind("one", "tcp://127.0.0.1:*", host=RealHost()) as one,
        ActorSystem.bind("two", "tcp://127.0.0.1:*", host=RealHost()) as two,
        ByteProxy(server.endpoint) as line,
    ):
        await server.spawn(Board, name="rendezvous")
        here, there = AddressRendezvous(one, line.endpoint, "board"), AddressRendezvous(two, server.endpoint, "board")
        assert await here.get("k") is None
        line.to_caller.swallow = True
        setting = asyncio.ensure_future(here.set("k", b"first"))
        assert await there.wait("k") == b"first"
        await there.set("k", b"second")
        line.to_caller.swallow = False
        line.cut()
        async with asyncio.timeout(15):
            await setting
        assert await there.get("k") == b"second"
