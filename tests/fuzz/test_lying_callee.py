"""A callee that answers with broken messages: its caller gets typed errors or well-typed results, in time."""

import asyncio
import gc
from collections import Counter
from collections.abc import AsyncIterator

import psutil
import pytest

from asyncrl.errors import ActorError, AsyncRLError
from asyncrl.runtime import ActorAddress, ActorRef, ActorSystem
from tests.faults.conftest import StartPeer
from tests.faults.fault_actors import into
from tests.fuzz.attackers import Flooder, Liar
from tests.fuzz.target import Target

MB = 1 << 20
DEADLINE = 0.3


def resident() -> int:
    return int(psutil.Process().memory_info().rss)


async def one_call(ref: ActorRef[Target], number: int, tally: Counter[str]) -> None:
    """One call of one kind; whatever its end is, it is well-typed."""
    try:
        async with asyncio.timeout(10 * DEADLINE):
            if number % 4 == 0:
                assert type(await ref.call(Target.add, 1)) is int
            elif number % 4 == 1:
                assert type(await ref.call(Target.named, "a")) is str
            elif number % 4 == 2:
                assert await ref.call(Target.hang) is None  # type: ignore[func-returns-value]
            else:
                assert all([type(item) is int async for item in ref.stream(Target.count, 3)])
        tally["result"] += 1
    except AsyncRLError as error:
        tally[type(error).__name__] += 1


async def calls_to_a_liar(caller: ActorSystem, endpoint: str, seed: int, enough: int, lies: int) -> Counter[str]:
    """Calls until ``enough`` lies were told; meanwhile an honest callee answers as ever."""
    tally: Counter[str] = Counter()
    with Liar(endpoint, seed, lies) as liar:
        ref = caller.ref(ActorAddress("liar", liar.endpoint, "target", "a1", 0), Target).with_deadline(DEADLINE)
        number = 0
        while liar.told < enough:
            assert liar.alive
            # Several at once: a broken message ends the connection for all of them.
            await asyncio.gather(*[one_call(ref, number + i, tally) for i in range(4)])
            number += 4
    return tally


@pytest.fixture
async def honest(start_peer: StartPeer, caller: ActorSystem) -> AsyncIterator[Counter[str]]:
    """An honest callee that is called all the time; counts the right answers."""
    peer = await start_peer("there", "ipc", actors={"target": "tests.fuzz.target:Target"})
    ref = caller.ref(peer.address, Target).with_deadline(20)
    tally: Counter[str] = Counter()

    async def serve() -> None:
        while True:
            assert await ref.call(Target.add, 7) == 7
            tally["right"] += 1
            await asyncio.sleep(0.01)

    serving = asyncio.ensure_future(serve())
    yield tally
    serving.cancel()
    await asyncio.wait([serving])
    assert serving.cancelled()
    assert tally["right"]


@pytest.mark.parametrize("transport", ["ipc", "tcp"])
async def test_a_lying_callee_is_answered_with_typed_errors(caller: ActorSystem, honest: Counter[str], folder: str, transport: str) -> None:
    endpoint = "tcp://127.0.0.1:*" if transport == "tcp" else f"ipc://{folder}/liar.sock"
    tally = await calls_to_a_liar(caller, endpoint, 1, 1000, 12)
    assert {"result", "WireError", "CallFailed"} <= tally.keys()


@pytest.mark.faults
@pytest.mark.timeout(900)
@pytest.mark.parametrize("transport", ["ipc", "tcp"])
async def test_a_hundred_thousand_lies_are_answered_with_typed_errors_and_no_memory(
    caller: ActorSystem, honest: Counter[str], folder: str, transport: str
) -> None:
    endpoint = "tcp://127.0.0.1:*" if transport == "tcp" else f"ipc://{folder}/liar.sock"
    await calls_to_a_liar(caller, endpoint.replace("liar", "first"), 2, 2000, 40)
    gc.collect()
    before = resident()
    await calls_to_a_liar(caller, endpoint, 3, 100_000, 40)
    gc.collect()
    print(f"grew by {(resident() - before) / MB:.0f} MB")
    assert resident() - before < 50 * MB


async def test_a_callee_that_sends_more_items_than_it_may_is_cut_off(caller: ActorSystem, folder: str) -> None:
    with Flooder(f"ipc://{folder}/flooder.sock", 20_000, 10_000) as flooder:
        ref = caller.ref(ActorAddress("flooder", flooder.endpoint, "target", "a1", 0), Target).with_deadline(5)
        before = resident()
        items = ref.stream(Target.endless)
        assert type(await anext(items)) is bytes
        # A consumer that takes its time: what it was not asked for must not pile up here.
        await asyncio.sleep(1)
        assert resident() - before < 50 * MB
        async with asyncio.timeout(20):
            with pytest.raises(ActorError):
                await into([], items)
    assert resident() - before < 50 * MB
