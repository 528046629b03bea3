"""A call leaves no cycles behind, however it ends: what it carried is gone at once, not when garbage is collected."""

import asyncio
import contextlib
import gc
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest

from asyncrl.errors import ActorDied, CallFailed, CallTimedOut, WireError
from asyncrl.runtime import Actor, ActorRef, ActorSystem, endpoint

DATA = b"x" * 20_000


class Endings(Actor):
    """Calls that end in every way."""

    concurrency = 0

    @endpoint
    async def result(self, data: bytes) -> bytes:
        return data

    @endpoint(idempotent=True)
    async def result_again(self, data: bytes) -> int:
        return len(data)

    @endpoint
    def result_of_thread(self, data: bytes) -> bytes:
        return data

    @endpoint
    async def error(self, data: bytes) -> None:
        raise RuntimeError(f"{len(data)} bytes")

    @endpoint(idempotent=True)
    async def error_again(self, data: bytes) -> None:
        raise ActorDied("another", f"{len(data)} bytes")

    @endpoint
    async def hang(self, data: bytes) -> None:
        await asyncio.get_running_loop().create_future()

    @endpoint
    async def items(self, data: bytes) -> AsyncIterator[bytes]:
        for _ in range(3):
            yield data

    @endpoint
    async def broken_items(self, data: bytes) -> AsyncIterator[bytes]:
        yield data
        raise RuntimeError(f"{len(data)} bytes")


Ending = Callable[[ActorRef[Endings]], Awaitable[object]]


async def all_items(ref: ActorRef[Endings]) -> None:
    assert [item async for item in ref.stream(Endings.items, DATA)] == [DATA] * 3


async def one_item(ref: ActorRef[Endings]) -> None:
    async with contextlib.aclosing(ref.stream(Endings.items, DATA)) as items:
        assert await anext(items) == DATA


async def broken_items(ref: ActorRef[Endings]) -> None:
    with pytest.raises(CallFailed):
        assert [item async for item in ref.stream(Endings.broken_items, DATA)] == []


async def left(ref: ActorRef[Endings]) -> None:
    task = asyncio.ensure_future(ref.call(Endings.hang, DATA))
    await ref.call(Endings.result, b"")
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def timed_out(ref: ActorRef[Endings]) -> None:
    with pytest.raises(CallTimedOut):
        await ref.with_deadline(0.01).call(Endings.hang, DATA)


async def unsendable(ref: ActorRef[Endings]) -> None:
    with pytest.raises(WireError):
        await ref.call(Endings.result, object())  # type: ignore[call-overload]


def failing(method: Callable[..., Awaitable[object]], kind: type[Exception]) -> Ending:
    async def call(ref: ActorRef[Endings]) -> None:
        with pytest.raises(kind):
            await ref.call(method, DATA)

    return call


ENDINGS: dict[str, Ending] = {
    "a result": lambda ref: ref.call(Endings.result, DATA),
    "an idempotent result": lambda ref: ref.call(Endings.result_again, DATA),
    "a result of a thread": lambda ref: ref.call(Endings.result_of_thread, DATA),
    "told": lambda ref: ref.tell(Endings.result, DATA),
    "an error": failing(Endings.error, CallFailed),
    "an idempotent error": failing(Endings.error_again, ActorDied),
    "all items": all_items,
    "one item": one_item,
    "items that break": broken_items,
    "a caller that left": left,
    "a deadline": timed_out,
    "arguments that cannot travel": unsendable,
}


@pytest.mark.parametrize("ending", ENDINGS)
async def test_a_call_leaves_nothing_for_the_garbage_collector(ending: str) -> None:
    async with ActorSystem.local() as system:
        ref = await system.spawn(Endings, name="endings")
        for _ in range(3):
            await ENDINGS[ending](ref)
        await ref.call(Endings.result, DATA)
        gc.collect()
        gc.disable()
        try:
            for _ in range(20):
                await ENDINGS[ending](ref)
            # What was asked before is over when this is answered.
            await ref.call(Endings.result, DATA)
            found = gc.collect()
        finally:
            gc.enable()
    assert found == 0, f"{found} objects were left behind by 20 calls"
