"""An idempotent call whose connection breaks is sent again and has one effect; any other call ends with the connection."""

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import ClassVar

import msgspec
import pytest

from asyncrl.errors import ActorDied, CallFailed, CallTimedOut
from asyncrl.runtime import Actor, ActorRef, ActorSystem, MemoryNetwork, RealHost, endpoint
from asyncrl.runtime.effects import LARGE, MOST, MOST_BYTES, Effects
from asyncrl.runtime.invocation import RETURN_SECONDS
from asyncrl.runtime.memory import MemoryTransport
from asyncrl.runtime.messages import Reply
from asyncrl.runtime.security import Identity
from asyncrl.runtime.transport import Link, Receiver
from asyncrl.runtime.waits import Wait


class CuttableTransport(MemoryTransport):
    """Its listener can cut every connection, as a network does: both ends hear of it, nothing on the way arrives."""

    def listen(self, accept: Callable[[Link], Receiver]) -> None:
        self.accepted: list[tuple[Link, Receiver]] = []

        def remember(link: Link) -> Receiver:
            receiver = accept(link)
            self.accepted.append((link, receiver))
            return receiver

        super().listen(remember)

    def cut(self) -> None:
        for link, receiver in self.accepted:
            link.close()
            receiver.lost("cut")
        self.accepted.clear()


class Account(Actor):
    """Counts effects; an effect waits in the middle until ``open`` is set."""

    concurrency: ClassVar[int] = 0

    def __init__(self) -> None:
        self.balance, self.started = 0, 0
        self.open, self.entered = asyncio.Event(), asyncio.Event()

    async def _effect(self, amount: int) -> int:
        self.started += 1
        self.entered.set()
        await self.open.wait()
        self.balance += amount
        return self.balance

    @endpoint(idempotent=True)
    async def deposit(self, amount: int) -> int:
        return await self._effect(amount)

    @endpoint(idempotent=True)
    async def refuse(self) -> None:
        self.started += 1
        self.entered.set()
        await self.open.wait()
        raise ValueError("no")

    @endpoint(idempotent=True)
    async def statement(self, size: int) -> bytes:
        self.started += 1
        self.entered.set()
        await self.open.wait()
        return bytes(size)

    @endpoint(idempotent=True)
    async def slowly(self) -> None:
        self.entered.set()
        await self.open.wait()
        self.context.progress()
        await asyncio.get_running_loop().create_future()

    @endpoint
    async def peek(self) -> int:
        return self.balance

    @endpoint
    async def deposit_once(self, amount: int) -> int:
        return await self._effect(amount)


class Bank:
    def __init__(self, transport: CuttableTransport, account: Account, ref: ActorRef[Account]) -> None:
        self.transport, self.account, self.ref = transport, account, ref


@pytest.fixture
async def bank() -> AsyncIterator[Bank]:
    network = MemoryNetwork()
    transport = CuttableTransport("memory://there", network)
    async with ActorSystem(Identity("there"), RealHost(), transport) as there, ActorSystem.local(process="here", network=network) as here:
        await there.spawn(Account, name="account")
        account = there.instance("account", Account)
        yield Bank(transport, account, here.ref(there.address("account"), Account))
        assert not here.waits.snapshot()


async def test_a_call_that_runs_when_its_connection_breaks_is_answered_over_the_next_one_with_one_effect(bank: Bank) -> None:
    call = asyncio.ensure_future(bank.ref.call(Account.deposit, 5))
    await bank.account.entered.wait()
    bank.transport.cut()
    await asyncio.sleep(0)
    bank.account.open.set()
    assert await call == 5
    assert (bank.account.balance, bank.account.started) == (5, 1)


async def test_an_answer_that_was_lost_is_given_again_without_running_again(bank: Bank) -> None:
    call = asyncio.ensure_future(bank.ref.call(Account.deposit, 5))
    await bank.account.entered.wait()
    bank.transport.cut()
    # It ends while no connection is there to carry its answer.
    bank.account.open.set()
    assert await call == 5
    assert (bank.account.balance, bank.account.started) == (5, 1)


async def test_a_failure_is_given_again_too(bank: Bank) -> None:
    call = asyncio.ensure_future(bank.ref.call(Account.refuse))
    await bank.account.entered.wait()
    bank.transport.cut()
    bank.account.open.set()
    with pytest.raises(CallFailed, match="ValueError: no"):
        await call
    assert bank.account.started == 1


@pytest.mark.parametrize(("size", "runs"), [(LARGE // 2, 1), (LARGE + 1, 2)], ids=["kept", "not kept"])
async def test_a_lost_answer_that_is_large_is_made_again(bank: Bank, size: int, runs: int) -> None:
    call = asyncio.ensure_future(bank.ref.call(Account.statement, size))
    await bank.account.entered.wait()
    bank.transport.cut()
    bank.account.open.set()
    assert await call == bytes(size)
    assert bank.account.started == runs


def test_the_documentation_names_the_bounds_of_what_is_kept() -> None:
    docs = Path(__file__).parents[3] / "docs"
    said = " ".join((docs / "runtime.md").read_text().split())
    assert f"keeps its latest answers ({MOST}, or {MOST_BYTES >> 20} MiB in all)" in said
    assert f"An answer of more than {LARGE >> 10} KiB" in said
    assert f"for {RETURN_SECONDS:g} s without one" in said
    table = (docs / "processes.md").read_text()
    assert f"actor keeps | {MOST}, {MOST_BYTES >> 20} MiB in all, {LARGE >> 10} KiB each |" in table
    assert f"until its deadline, {RETURN_SECONDS:g} s without one |" in table


async def seen(bank: Bank, wanted: Callable[[Wait], bool]) -> Wait:
    """The wait of the caller that is ``wanted``, once there is one."""
    for _ in range(1000):
        if found := [wait for wait in bank.ref.caller.waits.snapshot() if wanted(wait)]:
            return found[0]
        await asyncio.sleep(0)
    raise AssertionError("there is none")


async def test_a_call_that_came_again_hears_of_its_progress(bank: Bank) -> None:
    call = asyncio.ensure_future(bank.ref.watched(60).call(Account.slowly))
    await bank.account.entered.wait()
    bank.transport.cut()
    wait = await seen(bank, lambda wait: "sent 2 times" in wait.what)
    # The second one has arrived when a call after it is answered.
    await bank.ref.call(Account.peek)
    assert wait.touched == 0.0
    bank.account.open.set()
    await seen(bank, lambda wait: wait.touched > 0)
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call


def test_an_endpoint_that_is_idempotent_and_collective_is_refused() -> None:
    with pytest.raises(ValueError, match="idempotent or collective"):
        endpoint(idempotent=True, collective=True)


async def test_two_calls_are_two_effects(bank: Bank) -> None:
    bank.account.open.set()
    assert await bank.ref.call(Account.deposit, 5) == 5
    assert await bank.ref.call(Account.deposit, 5) == 10


async def test_a_call_that_is_not_idempotent_ends_with_its_connection_and_is_cancelled(bank: Bank) -> None:
    call = asyncio.ensure_future(bank.ref.call(Account.deposit_once, 5))
    await bank.account.entered.wait()
    bank.transport.cut()
    with pytest.raises(ActorDied):
        await call
    bank.account.open.set()
    assert await bank.ref.call(Account.deposit_once, 1) == 1
    assert bank.account.started == 2


async def test_a_third_break_is_the_end(bank: Bank) -> None:
    call = asyncio.ensure_future(bank.ref.call(Account.deposit, 5))
    await bank.account.entered.wait()
    cuts = 0
    while not call.done() and cuts < 100:
        if bank.transport.accepted:
            bank.transport.cut()
            cuts += 1
        await asyncio.sleep(0)
    with pytest.raises(ActorDied):
        await call
    assert cuts == 3


async def test_the_deadline_holds_for_all_tries_together_and_the_error_says_how_often_it_was_sent(bank: Bank) -> None:
    loop = asyncio.get_running_loop()
    start = loop.time()
    call = asyncio.ensure_future(bank.ref.with_deadline(0.2).call(Account.deposit, 5))
    await bank.account.entered.wait()
    bank.transport.cut()
    with pytest.raises(CallTimedOut, match=r"sent 2 times"):
        await call
    assert loop.time() - start < 0.6


def test_records_are_bounded_in_number_and_bytes_and_the_oldest_go_first() -> None:
    effects = Effects(most=3, most_bytes=4000)
    for number in range(5):
        effects.ended(("p", 0, number), Reply(number, msgspec.Raw(b"\x01")), ())
    assert [effects.answer(("p", 0, number)) is not None for number in range(5)] == [False, False, True, True, True]
    effects.ended(("p", 0, 9), Reply(9, msgspec.Raw(b"x" * 3300)), ())
    assert effects.answer(("p", 0, 4)) is not None
    assert effects.answer(("p", 0, 3)) is None


def test_what_readers_ask_for_is_not_kept() -> None:
    effects = Effects()
    effects.ended(("p", 0, 1), Reply(1, msgspec.Raw(b"\x01")), (b"a buffer",))
    effects.ended(("p", 0, 2), Reply(2, msgspec.Raw(b"x" * 100_000)), ())
    assert effects.answer(("p", 0, 1)) is None
    assert effects.answer(("p", 0, 2)) is None
