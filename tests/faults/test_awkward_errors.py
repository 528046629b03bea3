"""Errors and results that do not want to travel: each call is answered all the same, and typed."""

from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest

from asyncrl.errors import ActorDied, CallFailed, ConfigError, RunFailed, UnknownRow, WireError
from asyncrl.runtime import Actor, ActorRef, ActorSystem, RealHost, endpoint
from tests.faults.promises import promised
from tests.faults.systems import bind


class Speechless(Exception):
    """Its text cannot be made."""

    def __str__(self) -> str:
        raise RuntimeError("no words")


def _endless() -> list[Any]:
    value: list[Any] = []
    value.append(value)
    return value


ERRORS: dict[str, BaseException] = {
    "speechless": Speechless(),
    "half a character": RuntimeError("\ud800"),
    "large text": RuntimeError("x" * 10_000_000),
    "group": ExceptionGroup("several", [RuntimeError("one"), KeyError("two")]),
    "stop": StopAsyncIteration("over"),
    "memory": MemoryError(),
    "own, large number": UnknownRow("k", "train", 2**80),
    "own, half a character": RunFailed("\udc80"),
    "own, endless": ConfigError("a.b", _endless(), "a list that ends"),
    "own, large": RunFailed("x" * 5_000_000),
    "own, no attributes": UnknownRow.__new__(UnknownRow, "k"),
}


class Picky(msgspec.Struct):
    """Cannot be rebuilt by the caller."""

    n: int

    def __post_init__(self) -> None:
        if self.n < 0:
            raise LookupError("no negative numbers here")


def _negative() -> Picky:
    value = Picky(1)
    value.n = -1
    return value


RESULTS: dict[str, Any] = {
    "object": object(),
    "large number": 2**70,
    "half a character": "\ud800",
    "endless": _endless(),
    "another type": "text",
    "picky": _negative(),
    "keys": {(1, 2): object()},
}


class Awkward(Actor):
    """Raises and returns what is asked for, by every kind of endpoint."""

    concurrency = 0

    @endpoint
    async def fail(self, which: str) -> int:
        raise ERRORS[which]

    @endpoint
    def fail_on_thread(self, which: str) -> int:
        raise ERRORS[which]

    @endpoint
    async def fail_in_stream(self, which: str) -> AsyncIterator[int]:
        yield 1
        raise ERRORS[which]

    @endpoint
    def next_of_nothing(self) -> int:
        return next(iter(()))

    @endpoint
    async def give(self, which: str) -> Picky:
        return RESULTS[which]  # type: ignore[no-any-return]

    @endpoint
    async def give_in_stream(self, which: str) -> AsyncIterator[Picky]:
        yield RESULTS[which]

    @endpoint
    async def fine(self) -> int:
        return 1


@pytest.fixture
async def awkward(folder: str, caller: ActorSystem) -> AsyncIterator[ActorRef[Awkward]]:
    async with bind("there", f"ipc://{folder}/there.sock", RealHost()) as there:
        await there.spawn(Awkward, name="awkward")
        yield caller.ref(there.address("awkward"), Awkward).with_deadline(5)


@pytest.mark.parametrize("which", ERRORS)
async def test_an_error_of_any_kind_answers_its_call(awkward: ActorRef[Awkward], which: str) -> None:
    answered: tuple[type[Exception], ...] = (CallFailed, UnknownRow, RunFailed, ConfigError)
    async with promised(1.0, f"error that is awkward to send ({which})"):
        with pytest.raises(answered):
            await awkward.call(Awkward.fail, which)
        with pytest.raises(answered):
            await awkward.call(Awkward.fail_on_thread, which)
        items = awkward.stream(Awkward.fail_in_stream, which)
        assert await anext(items) == 1
        with pytest.raises(answered):
            await anext(items)
    assert await awkward.call(Awkward.fine) == 1


async def test_a_plain_function_that_exhausts_an_iterator_answers_its_call(awkward: ActorRef[Awkward]) -> None:
    async with promised(1.0, "StopIteration on a worker thread"):
        with pytest.raises(CallFailed, match="StopIteration"):
            await awkward.call(Awkward.next_of_nothing)


@pytest.mark.parametrize("which", RESULTS)
async def test_a_result_that_does_not_fit_is_a_wire_error(awkward: ActorRef[Awkward], which: str) -> None:
    async with promised(1.0, f"result that does not fit ({which})"):
        with pytest.raises(WireError):
            await awkward.call(Awkward.give, which)
        with pytest.raises(WireError):
            await anext(awkward.stream(Awkward.give_in_stream, which))
    assert await awkward.call(Awkward.fine) == 1


@pytest.mark.faults
async def test_the_caller_of_a_stopped_actor_hears_of_it(folder: str, caller: ActorSystem) -> None:
    async with bind("there", f"ipc://{folder}/there.sock", RealHost()) as there:
        await there.spawn(Awkward, name="awkward")
        ref = caller.ref(there.address("awkward"), Awkward)
        assert await ref.call(Awkward.fine) == 1
    async with promised(2.0, "call to a process that has closed"):
        with pytest.raises(ActorDied):
            await ref.call(Awkward.fine)
