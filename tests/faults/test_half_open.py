"""Broken connections between processes that live: swallowed bytes, cuts, partitions, and lines that are only slow."""

import asyncio
import contextlib
from collections.abc import AsyncIterator

import pytest

from asyncrl.errors import ActorDied, ActorError, CallTimedOut
from asyncrl.runtime import ActorRef, ActorSystem, RealHost
from tests.faults.byte_proxy import ByteProxy
from tests.faults.conftest import Peer, StartPeer
from tests.faults.fault_actors import Worker, into
from tests.faults.promises import promised
from tests.faults.systems import PULSE, VERDICT, bind

SEEDS = [1, *[pytest.param(seed, marks=pytest.mark.faults) for seed in range(2, 12)]]


class Line:
    """A caller and a callee with a proxy between them. ``worker`` goes by the proxy, ``direct`` does not."""

    def __init__(self, proxy: ByteProxy, peer: Peer, caller: ActorSystem) -> None:
        self.proxy = proxy
        self.worker: ActorRef[Worker] = peer.worker(caller, proxy.endpoint)
        self.direct: ActorRef[Worker] = peer.worker(caller)


@pytest.fixture
async def line(inside: Peer, caller: ActorSystem) -> AsyncIterator[Line]:
    async with ByteProxy(inside.address.endpoint) as proxy:
        yield Line(proxy, inside, caller)


@pytest.mark.parametrize("direction", ["to_caller", pytest.param("to_callee", marks=pytest.mark.faults)])
async def test_a_connection_that_swallows_one_direction_is_lost_by_the_verdict_of_its_heartbeats(line: Line, direction: str) -> None:
    calls = [asyncio.ensure_future(line.worker.watched(60).call(Worker.hang)) for _ in range(3)]
    await line.worker.call(Worker.has_started)
    way = line.proxy.to_callee if direction == "to_callee" else line.proxy.to_caller
    async with promised(VERDICT + 0.2, f"half-open connection, swallowed {direction.replace('_', ' the ')}"):
        way.swallow = True
        late = asyncio.ensure_future(line.worker.call(Worker.echo, 1))
        for call in (*calls, late):
            with pytest.raises(ActorDied, match="there died"):
                await call
    assert way.swallowed


@pytest.mark.faults
async def test_the_callee_of_a_half_open_connection_stops_its_calls(line: Line) -> None:
    call = asyncio.ensure_future(line.worker.call(Worker.hang))
    await line.worker.call(Worker.has_started)
    async with promised(VERDICT + PULSE, "half-open connection: the call at the callee is cancelled"):
        line.proxy.to_callee.swallow = True
        await line.direct.call(Worker.was_cancelled)
    with pytest.raises(ActorDied):
        await call


async def test_a_peer_that_accepts_and_never_answers_is_named_by_the_deadline(line: Line) -> None:
    line.proxy.to_caller.swallow = True
    async with promised(1.0, "connection that never answers, call with a deadline of 1 s"):
        with pytest.raises((CallTimedOut, ActorError), match="there"):
            await line.worker.with_deadline(1.0).call(Worker.echo, 1)


async def test_a_partition_that_is_shorter_than_the_verdict_loses_nothing(line: Line) -> None:
    assert await line.worker.call(Worker.effect, "before") == 1
    line.proxy.freeze()
    calls = [asyncio.ensure_future(line.worker.call(Worker.effect, f"k{number}")) for number in range(50)]
    await asyncio.wait(calls, timeout=VERDICT / 2)
    assert not any(call.done() for call in calls)
    line.proxy.thaw()
    async with promised(1.0, "answers after a short partition"):
        assert await asyncio.gather(*calls) == [1] * 50
    assert line.proxy.connections == 1


async def test_a_partition_that_is_longer_than_the_verdict_ends_calls_and_heals(line: Line) -> None:
    call = asyncio.ensure_future(line.worker.watched(60).call(Worker.hang))
    await line.worker.call(Worker.has_started)
    async with promised(VERDICT + 0.2, "partition"):
        line.proxy.freeze()
        with pytest.raises(ActorDied):
            await call
    line.proxy.thaw()
    async with promised(1.0, "first answer after a long partition"):
        assert await line.worker.call(Worker.echo, 7) == 7
    assert line.proxy.connections > 1


async def test_a_cut_is_told_to_every_call_at_once(line: Line) -> None:
    calls = [asyncio.ensure_future(line.worker.call(Worker.hang)) for _ in range(20)]
    seen: list[bytes] = []
    items = asyncio.ensure_future(into(seen, line.worker.stream(Worker.items, 100, 100_000)))
    await line.worker.call(Worker.has_started)
    async with promised(1.0, "cut of a connection"):
        line.proxy.cut()
        for call in (*calls, items):
            with pytest.raises(ActorDied, match="there died"):
                await call
    assert await line.worker.call(Worker.echo, 3) == 3


async def test_a_cut_runs_a_call_at_most_once(line: Line) -> None:
    ended = dict.fromkeys(("result", "error"), 0)
    for number in range(60):
        call = asyncio.ensure_future(line.worker.with_deadline(5).call(Worker.effect, f"k{number}"))
        await asyncio.sleep(0 if number % 3 else 0.001)
        if number % 2:
            line.proxy.cut()
        try:
            assert await call == 1
            ended["result"] += 1
        except ActorDied:
            ended["error"] += 1
    effects = await line.direct.call(Worker.all_effects)
    assert set(effects.values()) == {1}
    assert ended["result"] <= len(effects) <= 60
    assert ended["error"]


async def test_a_cut_leaves_one_effect_of_an_idempotent_call_and_its_result(line: Line) -> None:
    for number in range(40):
        call = asyncio.ensure_future(line.worker.with_deadline(5).call(Worker.idempotent_effect, f"k{number}"))
        await asyncio.sleep(0 if number % 3 else 0.001)
        line.proxy.cut()
        assert await call == 1
    assert await line.direct.call(Worker.all_effects) == {f"k{number}": 1 for number in range(40)}


@pytest.mark.faults
async def test_a_callee_that_is_gone_for_good_is_dead_after_a_moment(line: Line) -> None:
    assert await line.worker.call(Worker.echo, 1) == 1
    await line.proxy.vanish()
    async with promised(2.0, "call to an endpoint where nobody listens any more"):
        with pytest.raises(ActorDied, match="there died"):
            await line.worker.call(Worker.echo, 1)


async def test_a_slow_line_is_not_dead(line: Line) -> None:
    """Ten results of 250 KB take about two verdicts to arrive, whatever they delay behind them; a single frame may take one."""
    assert await line.worker.call(Worker.echo, 1) == 1
    line.proxy.to_caller.trickle = 5_000
    line.proxy.to_caller.pause = 2 * VERDICT / 500
    large = [asyncio.ensure_future(line.worker.with_deadline(50).call(Worker.bytes_of, 250_000)) for _ in range(10)]
    small = asyncio.ensure_future(line.worker.with_deadline(50).call(Worker.echo, 2))
    assert [len(each) for each in await asyncio.gather(*large)] == [250_000] * 10
    assert await small == 2
    assert line.proxy.connections == 1


@pytest.mark.parametrize("seed", SEEDS)
async def test_changed_bytes_end_typed(inside: Peer, caller: ActorSystem, seed: int) -> None:
    """Without keys a changed byte may pass as another value, as it may on any socket."""
    async with ByteProxy(inside.address.endpoint, seed) as proxy:
        await calls_through_noise(proxy, inside.worker(caller, proxy.endpoint), 60)
    assert await inside.worker(caller).call(Worker.echo, 1) == 1


@pytest.mark.parametrize("seed", SEEDS)
async def test_no_changed_byte_passes_where_there_are_keys(start_peer: StartPeer, folder: str, seed: int) -> None:
    peer = await start_peer(job_key=b"k" * 32)
    sealed = bind("sealed", f"ipc://{folder}/sealed.sock", RealHost(), job_key=b"k" * 32)
    async with sealed, ByteProxy(peer.address.endpoint, seed) as proxy:
        values = await calls_through_noise(proxy, peer.worker(sealed, proxy.endpoint), 60)
        assert all(value == number for number, value in values.items())
        assert await peer.worker(sealed).call(Worker.echo, 1) == 1


async def test_a_sealed_connection_that_is_changed_and_cut_ends_neither_process(start_peer: StartPeer, folder: str) -> None:
    """libzmq's heartbeat must not meet a connection of which it could not decipher a message, and whose peer has left."""
    peer = await start_peer(job_key=b"k" * 32)
    sealed = bind("sealed", f"ipc://{folder}/sealed.sock", RealHost(), job_key=b"k" * 32)
    async with sealed, ByteProxy(peer.address.endpoint) as proxy:
        worker = peer.worker(sealed, proxy.endpoint).with_deadline(2)
        for way in (proxy.to_callee, proxy.to_caller):
            assert await worker.call(Worker.echo, 1) == 1
            way.corrupt = 1.0
            call = asyncio.ensure_future(worker.call(Worker.echo, 2))
            # Time for the changed message to arrive, and then for a heartbeat.
            await asyncio.wait([call], timeout=0.05)
            way.corrupt = 0.0
            proxy.cut()
            await asyncio.wait([call])
            assert isinstance(call.exception(), ActorError)
            await asyncio.sleep(0.25)
    assert peer.process.poll() is None


async def calls_through_noise(proxy: ByteProxy, worker: ActorRef[Worker], count: int) -> dict[int, int]:
    """The results of the calls that had one; the others ended typed, in time."""
    worker = worker.with_deadline(0.5)
    assert await worker.call(Worker.echo, 1) == 1
    proxy.to_caller.corrupt = proxy.to_callee.corrupt = 0.03
    values: dict[int, int] = {}
    for number in range(count):
        with contextlib.suppress(ActorError):
            values[number] = await worker.call(Worker.echo, number)
    assert values
    assert proxy.connections > 1
    return values
