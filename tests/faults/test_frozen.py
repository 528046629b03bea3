"""Processes that freeze: a verdict by heartbeats, and no word of an old life once there is a new one."""

import asyncio
import re
import signal

import pytest

from asyncrl.errors import ActorDied, CallTimedOut
from asyncrl.runtime import ActorRef, ActorSystem, RealHost
from tests.faults.conftest import StartPeer
from tests.faults.fault_actors import Ledger, Worker, Writer, into
from tests.faults.promises import promised
from tests.faults.systems import HEARTBEAT, PULSE, VERDICT, bind


@pytest.mark.parametrize("transport", ["tcp", pytest.param("ipc", marks=pytest.mark.faults)])
async def test_callers_of_a_frozen_process_hear_the_verdict_of_its_heartbeats(
    start_peer: StartPeer, caller: ActorSystem, transport: str
) -> None:
    peer = await start_peer("there", transport)
    worker = peer.worker(caller)
    calls = [asyncio.ensure_future(worker.watched(60).call(Worker.hang)) for _ in range(5)]
    stream = worker.stream(Worker.items, 10, 1000)
    assert await anext(stream) == bytes(10)
    await worker.call(Worker.has_started)
    async with promised(VERDICT + 0.2, f"SIGSTOP of a callee in mid-call, {transport}"):
        peer.signal(signal.SIGSTOP)
        for call in calls:
            with pytest.raises(ActorDied, match="there died"):
                await call
        with pytest.raises(ActorDied, match="there died"):
            await into([], stream)


@pytest.mark.faults
async def test_a_call_to_a_process_that_is_frozen_already_ends_by_its_deadline(start_peer: StartPeer, caller: ActorSystem) -> None:
    peer = await start_peer()
    peer.signal(signal.SIGSTOP)
    async with promised(1.0, "call to a process that was frozen before it"):
        with pytest.raises((CallTimedOut, ActorDied), match="there"):
            await peer.worker(caller).with_deadline(1.0).call(Worker.echo, 1)


async def test_a_freeze_that_is_shorter_than_the_verdict_harms_nothing(start_peer: StartPeer, caller: ActorSystem) -> None:
    peer = await start_peer()
    worker = peer.worker(caller)
    assert await worker.call(Worker.echo, 1) == 1
    peer.signal(signal.SIGSTOP)
    calls = [asyncio.ensure_future(worker.call(Worker.echo, number)) for number in range(20)]
    await asyncio.wait(calls, timeout=VERDICT / 2)
    assert not any(call.done() for call in calls)
    peer.signal(signal.SIGCONT)
    async with promised(1.0, "answers after a short freeze"):
        assert await asyncio.gather(*calls) == list(range(20))


@pytest.mark.faults
async def test_a_process_that_wakes_without_a_successor_serves_again(start_peer: StartPeer, caller: ActorSystem) -> None:
    peer = await start_peer()
    worker = peer.worker(caller)
    call = asyncio.ensure_future(worker.call(Worker.hang))
    await worker.call(Worker.has_started)
    peer.signal(signal.SIGSTOP)
    with pytest.raises(ActorDied):
        await call
    peer.signal(signal.SIGCONT)
    async with promised(1.0, "first answer of a process that woke up"):
        assert await worker.call(Worker.echo, 2) == 2


@pytest.mark.parametrize("frozen_for", [0.0, pytest.param(2 * VERDICT, marks=pytest.mark.faults)])
async def test_a_frozen_writer_that_wakes_after_its_successor_began_is_fenced(
    start_peer: StartPeer, folder: str, frozen_for: float
) -> None:
    keeper, asks = (bind(name, f"ipc://{folder}/{name}.sock", RealHost()) for name in ("keeper", "asks"))
    async with keeper, asks:
        old, new = await start_peer("writer", generation=0), await start_peer("writer", generation=1)
        ledger = await keeper.spawn(Ledger, name="ledger")
        old_writer = asks.ref(old.elsewhere("writer"), Writer)
        await old_writer.call(Writer.begin, ledger.address, 0)
        await lines_of(ledger, 0)
        old.signal(signal.SIGSTOP)
        await asks.ref(new.elsewhere("writer"), Writer).call(Writer.begin, ledger.address, 1)
        await lines_of(ledger, 1)
        await asyncio.sleep(frozen_for)
        old.signal(signal.SIGCONT)
        async with promised(1.0, f"a writer that wakes is told that it is fenced, frozen for {frozen_for:g} s"):
            outcome = await old_writer.call(Writer.how_it_ended)
        assert re.search("generation 0 of writer calls after|generation 1 of writer has taken its place", outcome)
        writers = [who for who, _ in await ledger.call(Ledger.read)]
        first = writers.index("writer#1")
        assert set(writers[first:]) == {"writer#1"}


async def lines_of(ledger: ActorRef[Ledger], generation: int) -> None:
    """Returns once a writer of this generation has written some lines."""
    await ledger.call(Ledger.has_lines_of, generation, 5)


@pytest.mark.faults
async def test_a_frozen_caller_loses_its_calls_at_the_callee(start_peer: StartPeer, caller: ActorSystem) -> None:
    """Its last heartbeat says how long its silence is borne; a callee looks for callers that are gone every two seconds."""
    there, other = await start_peer("there"), await start_peer("other")
    worker = there.worker(caller)
    asks = asyncio.ensure_future(other.worker(caller).call(Worker.ask_to_hang, there.address))
    await worker.call(Worker.has_started)
    await asyncio.wait([asks], timeout=2 * HEARTBEAT)
    async with promised(VERDICT + PULSE, "SIGSTOP of a caller: its call at the callee is cancelled"):
        other.signal(signal.SIGSTOP)
        await worker.call(Worker.was_cancelled)
    with pytest.raises(ActorDied):
        await asks
