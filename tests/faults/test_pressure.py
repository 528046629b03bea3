"""More than a process can take: slow consumers, full mailboxes, blocking endpoints, and ends with many calls open."""

import asyncio
import contextlib
import time

import psutil
import pytest
import zmq

from asyncrl.errors import ActorDied, CallTimedOut
from asyncrl.runtime import ActorRef, ActorSystem, RealHost
from tests.faults.conftest import StartPeer
from tests.faults.fault_actors import Worker
from tests.faults.promises import promised
from tests.faults.systems import VERDICT, bind

MB = 1 << 20
CREDIT = 1024
"""Calls to one actor that a process may have unanswered."""


def resident(pid: int) -> int:
    return int(psutil.Process(pid).memory_info().rss)


@pytest.mark.parametrize("transport", ["tcp", pytest.param("ipc", marks=pytest.mark.faults)])
async def test_a_slow_consumer_bounds_the_memory_of_both_sides(start_peer: StartPeer, caller: ActorSystem, transport: str) -> None:
    """16 items of 1 MB may be in flight; the stream has 300."""
    peer = await start_peer("there", transport)
    worker = peer.worker(caller)
    await worker.call(Worker.bytes_of, MB)
    there, here = resident(peer.pid), resident(psutil.Process().pid)
    most_there = most_here = 0
    taken = 0
    async with contextlib.aclosing(worker.stream(Worker.items, MB, 300)) as items:
        async for item in items:
            assert len(item) == MB
            taken += 1
            if taken % 20 == 1:
                # As slow as a consumer gets: whatever may come has come before it goes on.
                made = await settled(worker)
                assert made <= taken + 17
                most_there, most_here = max(most_there, resident(peer.pid) - there), max(most_here, resident(psutil.Process().pid) - here)
    assert taken == 300
    # Each side may hold the credit twice over, in the socket and out of it.
    assert most_there < (2 * 16 + 20) * MB
    assert most_here < (2 * 16 + 20) * MB


async def settled(worker: ActorRef[Worker]) -> int:
    """How many items were made, once no more are."""
    made = -1
    while made != (now := await worker.call(Worker.made)):
        made = now
    return made


async def test_a_full_mailbox_holds_its_senders_back_and_drops_nothing(start_peer: StartPeer, caller: ActorSystem, folder: str) -> None:
    peer = await start_peer()
    worker = peer.worker(caller)
    calls = [asyncio.ensure_future(worker.call(Worker.wait_release, number)) for number in range(CREDIT)]
    await asyncio.sleep(0)
    assert len([wait for wait in caller.waits.snapshot() if wait.what == "Worker.wait_release"]) == CREDIT
    more = [asyncio.ensure_future(worker.call(Worker.wait_release, CREDIT + number)) for number in range(500)]
    async with promised(0.3, "call to a full mailbox, deadline of 0.3 s"):
        with pytest.raises(CallTimedOut, match=r"worker@there did not answer credit for Worker.echo within 0.3 s") as caught:
            await worker.with_deadline(0.3).call(Worker.echo, 1)
    assert caught.value.what == "credit for Worker.echo"
    waits = [wait.what for wait in caller.waits.snapshot()]
    assert waits.count("credit for Worker.wait_release") == 500
    with pytest.raises(CallTimedOut, match="credit for"):
        await worker.with_deadline(0.05).call(Worker.effect, "never")
    assert not any(call.done() for call in calls + more)
    # Another caller has credit of its own.
    async with bind("other", f"ipc://{folder}/other.sock", RealHost()) as other:
        await peer.worker(other).call(Worker.let_go)
    async with promised(2.0, "1,524 calls after the mailbox opened"):
        assert await asyncio.gather(*calls, *more) == list(range(CREDIT + 500))
    assert await worker.call(Worker.all_effects) == {}


@pytest.mark.parametrize("seconds", [1.0, pytest.param(3.0, marks=pytest.mark.faults)])
async def test_others_are_served_while_a_plain_function_blocks(start_peer: StartPeer, caller: ActorSystem, seconds: float) -> None:
    worker = (await start_peer()).worker(caller)
    blocked = asyncio.ensure_future(worker.with_deadline(10).call(Worker.block, seconds))
    slowest = 0.0
    served = 0
    while not blocked.done():
        began = time.perf_counter()
        assert await worker.call(Worker.echo, served) == served
        slowest = max(slowest, time.perf_counter() - began)
        served += 1
        await asyncio.wait([blocked], timeout=0.01)
    assert await blocked == seconds
    assert served > 5
    assert slowest < seconds


@pytest.mark.parametrize("transport", ["tcp", pytest.param("ipc", marks=pytest.mark.faults)])
async def test_a_flood_whose_sender_leaves_while_the_loop_stands_still_harms_nobody(
    start_peer: StartPeer, caller: ActorSystem, transport: str
) -> None:
    """More than may wait to be read, from a peer that is gone when it could be read, over several heartbeats."""
    peer = await start_peer("there", transport)
    worker = peer.worker(caller)
    assert await worker.call(Worker.echo, 1) == 1
    stalled = asyncio.ensure_future(worker.with_deadline(10).call(Worker.stall, 2 * VERDICT))
    await asyncio.sleep(VERDICT / 8)
    await asyncio.to_thread(flood, peer.address.endpoint, 4000)
    assert not stalled.done()
    assert await stalled == 2 * VERDICT
    assert await worker.call(Worker.echo, 2) == 2
    assert peer.process.poll() is None


def flood(endpoint: str, count: int) -> None:
    """Sends as much as the other side takes, and breaks off."""
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    socket = context.socket(zmq.DEALER)
    socket.setsockopt(zmq.SNDTIMEO, 100)
    socket.connect(endpoint)
    with contextlib.suppress(zmq.Again):
        for _ in range(count):
            socket.send(b"x" * 20)
    # What was queued has left when as much again would block, or this much later.
    socket.close(linger=100)
    context.term()


@pytest.mark.parametrize("side", ["callee", "caller"])
async def test_closing_a_system_answers_each_of_a_hundred_open_calls(folder: str, caller: ActorSystem, side: str) -> None:
    async with bind("there", f"ipc://{folder}/there.sock", RealHost()) as there:
        await there.spawn(Worker, name="worker")
        worker = caller.ref(there.address("worker"), Worker)
        calls = [asyncio.ensure_future(worker.watched(600).call(Worker.hang)) for _ in range(100)]
        await worker.call(Worker.has_started)
        async with promised(1.0, f"close of the {side} with 100 open calls"):
            await (there if side == "callee" else caller).close("going home")
            for call in calls:
                with pytest.raises(ActorDied, match="going home"):
                    await call
        if side == "caller":
            await there.ref(there.address("worker"), Worker).call(Worker.was_cancelled)


async def test_closing_a_system_ends_credit_waits_and_streams(folder: str, caller: ActorSystem) -> None:
    async with bind("there", f"ipc://{folder}/there.sock", RealHost()) as there:
        await there.spawn(Worker, name="worker")
        worker = caller.ref(there.address("worker"), Worker).watched(600)
        calls = [asyncio.ensure_future(worker.call(Worker.hang)) for _ in range(CREDIT + 50)]
        items = worker.stream(Worker.items, 10, 10)
        stream = asyncio.ensure_future(anext(items))
        await there.ref(there.address("worker"), Worker).call(Worker.has_started)
        async with promised(1.0, "close of a callee with a full mailbox and waits behind it"):
            await there.close("going home")
            for call in (*calls, stream):
                with pytest.raises(ActorDied, match="going home"):
                    await call
        await items.aclose()
