"""What every rendezvous promises: in memory, and at a plain address."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from asyncrl.runtime import ActorSystem, AddressRendezvous, Board, MemoryRendezvous, RealHost, Rendezvous


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
