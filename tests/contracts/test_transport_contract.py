"""What every transport promises: the same tests over memory, ipc and tcp, and in tests/simulation over the simulated network."""

import asyncio
import contextlib
import gc
from collections.abc import AsyncIterator, Iterator

import pytest

from asyncrl.errors import ActorDied, CallFailed, CallTimedOut, Fenced, Undeliverable, UnknownRow, WireError
from asyncrl.runtime import ActorRef, ActorSystem, MemoryNetwork, RealHost, private_folder
from asyncrl.runtime.curve import Keyring
from asyncrl.runtime.host import remove_folder
from asyncrl.runtime.ref import STREAM_CREDIT
from asyncrl.runtime.site import CREDIT
from tests.unit.runtime.runtime_actors import Block, Counter, Diary, Parcel, Postman, Slow, open_descriptors

KINDS = ("memory", "ipc", "tcp", "tcp with keys")
JOB = Keyring.from_job_key(b"k" * 32, "controller")
KEYS = {"there": JOB, "here": JOB.for_role("worker")}


class Pair:
    """Two systems that reach each other over one transport; ``there`` hosts, ``here`` calls."""

    def __init__(self, there: ActorSystem, here: ActorSystem) -> None:
        self.there, self.here = there, here

    def counter(self) -> ActorRef[Counter]:
        return self.here.ref(self.there.address("counter"), Counter)

    def slow(self) -> ActorRef[Slow]:
        return self.here.ref(self.there.address("slow"), Slow)

    def postman(self) -> ActorRef[Postman]:
        return self.here.ref(self.there.address("postman"), Postman)

    def diary(self) -> ActorRef[Diary]:
        return self.here.ref(self.there.address("diary"), Diary)


@pytest.fixture
def runtime_folder() -> Iterator[str]:
    path = private_folder()
    yield path
    remove_folder(path)


@pytest.fixture(params=KINDS)
async def pair(request: pytest.FixtureRequest, runtime_folder: str) -> AsyncIterator[Pair]:
    gc.collect()
    before = open_descriptors()
    network = MemoryNetwork()

    def make(name: str) -> ActorSystem:
        if request.param == "memory":
            return ActorSystem.local(process=name, network=network)
        endpoint = f"ipc://{runtime_folder}/{name}.sock" if request.param == "ipc" else "tcp://127.0.0.1:*"
        keys = KEYS[name] if request.param == "tcp with keys" else None
        return ActorSystem.bind(name, endpoint, host=RealHost(), attempt="a1", token=b"t" * 32, keys=keys)

    async with make("there") as there, make("here") as here:
        await there.spawn(Counter, name="counter")
        await there.spawn(Slow, name="slow")
        await there.spawn(Postman, name="postman")
        await there.spawn(Diary, name="diary")
        yield Pair(there, here)
    assert not here.waits.snapshot()
    assert not there.waits.snapshot()
    gc.collect()
    assert len(asyncio.all_tasks()) == 1
    assert open_descriptors() == before


async def test_a_call_returns_its_result(pair: Pair) -> None:
    assert await pair.counter().call(Counter.add, 2) == 2
    assert await pair.counter().call(Counter.add, n=3) == 5


async def test_a_plain_function_runs_on_a_thread_with_keyword_only_arguments(pair: Pair) -> None:
    assert await pair.counter().call(Counter.repeat) == ["a", "a"]
    assert await pair.counter().call(Counter.repeat, "b", times=3) == ["b", "b", "b"]
    assert await pair.counter().call(Counter.repeat, times=1) == ["a"]


async def test_a_foreign_error_carries_kind_text_and_remote_trace(pair: Pair) -> None:
    with pytest.raises(CallFailed, match="no luck") as caught:
        await pair.counter().call(Counter.fail, "no luck")
    assert caught.value.kind == "RuntimeError"
    assert "raise RuntimeError(message)" in caught.value.remote_traceback
    assert caught.value.who == "counter@there"


async def test_errors_of_our_own_tree_come_back_as_themselves(pair: Pair) -> None:
    with pytest.raises(Fenced) as fenced:
        await pair.counter().call(Counter.fenced)
    assert (fenced.value.key, fenced.value.expected, fenced.value.seen) == ("u1", "lease 1", "lease 2")
    with pytest.raises(UnknownRow) as row:
        await pair.counter().call(Counter.unknown_row)
    assert (row.value.key, row.value.partition, row.value.shard) == ("k", "train", 3)


async def test_an_argument_of_the_wrong_type_is_refused_at_the_border(pair: Pair) -> None:
    with pytest.raises(WireError, match=r"Counter\.add\(n\): Expected `int`, got `str`"):
        await pair.counter().call(Counter.add, "two")  # type: ignore[call-overload]
    with pytest.raises(WireError, match="cannot encode"):
        await pair.counter().call(Counter.add, object())  # type: ignore[call-overload]
    with pytest.raises(WireError):
        await pair.counter().call(Counter.add)  # type: ignore[call-overload]
    with pytest.raises(TypeError, match="unexpected"):
        await pair.counter().call(Counter.add, 1, m=2)  # type: ignore[call-arg]
    assert await pair.counter().call(Counter.add, 1) == 1


async def test_registered_objects_travel_as_frames_wherever_they_stand(pair: Pair) -> None:
    data = bytes(range(256)) * 1000
    postman = pair.postman()
    block = await postman.call(Postman.echo, Block("one", data))
    assert (block.name, bytes(block.data)) == ("one", data)
    several = await postman.call(Postman.many, [Block("a", b"1"), Block("b", b""), Block("c", data)])
    assert {name: bytes(each.data) for name, each in several.items()} == {"a": b"1", "b": b"", "c": data}
    parcel = await postman.call(Postman.parcel, Parcel({"x": Block("x", data)}, Block("first", b"f")))
    assert parcel.first is not None
    assert (bytes(parcel.blocks["x"].data), bytes(parcel.first.data), parcel.note) == (data, b"f", "none")
    assert await postman.call(Postman.maybe) == 0
    assert await postman.call(Postman.maybe, Block("a", b""), other=[Block("b", b"")]) == 2


async def test_a_stream_yields_all_items_in_order(pair: Pair) -> None:
    assert [n async for n in pair.slow().stream(Slow.count, 100)] == list(range(100))
    pieces = [bytes(b.data) async for b in pair.postman().stream(Postman.pieces, Block("x", b"abcdefg"), 3)]
    assert pieces == [b"abc", b"def", b"g"]


async def test_a_stream_that_fails_gives_its_items_first(pair: Pair) -> None:
    seen: list[int] = []
    items = pair.slow().stream(Slow.broken)
    seen.append(await anext(items))
    with pytest.raises(CallFailed, match="stream broke"):
        await anext(items)
    assert seen == [1]


async def test_a_consumer_that_stops_bounds_the_producer(pair: Pair) -> None:
    slow = pair.slow()
    async with contextlib.aclosing(slow.stream(Slow.count, 10_000)) as items:
        assert await anext(items) == 0
        for _ in range(20):
            made = await slow.call(Slow.made)
        assert made <= STREAM_CREDIT + 1
        assert any("credit" in wait.what for wait in pair.there.waits.snapshot())
    assert await slow.call(Slow.was_cancelled)


async def test_leaving_a_stream_early_cancels_its_producer(pair: Pair) -> None:
    async with contextlib.aclosing(pair.slow().stream(Slow.count, 10_000)) as items:
        async for item in items:
            if item == 3:
                break
    assert await pair.slow().call(Slow.was_cancelled)
    assert await pair.slow().call(Slow.made) < 100


async def test_a_stream_that_is_dropped_is_cancelled_too(pair: Pair) -> None:
    async for _ in pair.slow().stream(Slow.count, 10_000):
        break
    gc.collect()
    assert await pair.slow().with_deadline(5).call(Slow.was_cancelled)


async def test_large_buffers_travel_both_ways(pair: Pair) -> None:
    data = bytearray(b"0123456789abcdef" * (1 << 20))
    calls = [pair.postman().call(Postman.echo, Block(str(i), data)) for i in range(3)]
    for i, block in enumerate(await asyncio.gather(*calls)):
        assert block.name == str(i)
        assert memoryview(block.data) == data


async def test_cancelling_the_caller_cancels_the_callee(pair: Pair) -> None:
    call = asyncio.ensure_future(pair.slow().call(Slow.hang))
    assert await pair.slow().call(Slow.has_started)
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    assert await pair.slow().call(Slow.was_cancelled)


async def test_a_deadline_raises_and_cancels_the_callee(pair: Pair) -> None:
    with pytest.raises(CallTimedOut, match=r"slow@there did not answer Slow.hang within 0.1 s"):
        await pair.slow().with_deadline(0.1).call(Slow.hang)
    assert await pair.slow().call(Slow.was_cancelled)


async def test_a_watched_call_lives_by_progress_and_dies_by_silence(pair: Pair) -> None:
    watched = pair.slow().watched(0.6)
    assert await watched.call(Slow.steps, [0.25] * 4) == 4
    with pytest.raises(CallTimedOut, match="no sign of progress"):
        await watched.call(Slow.hang)


async def test_what_is_not_there_is_undeliverable_by_name(pair: Pair) -> None:
    nobody = pair.here.ref(pair.there.address("nobody"), Counter)
    with pytest.raises(Undeliverable, match="no actor of this name") as caught:
        await nobody.call(Counter.add, 1)
    assert caught.value.who == "nobody@there"
    with pytest.raises(Undeliverable, match="has no endpoint 'add'"):
        await pair.here.ref(pair.there.address("slow"), Counter).call(Counter.add, 1)
    with pytest.raises(TypeError, match="not marked"):
        await pair.counter().call(Counter.unmarked)


async def test_messages_of_a_pair_keep_their_order(pair: Pair) -> None:
    diary = pair.diary()
    for n in range(300):
        await diary.tell(Diary.note, n)
    assert await diary.call(Diary.read) == list(range(300))
    await asyncio.gather(*[diary.call(Diary.note, n) for n in range(300, 600)])
    assert await diary.call(Diary.read) == list(range(600))


async def test_a_tell_waits_for_credit_and_a_failed_one_is_logged(pair: Pair, caplog: pytest.LogCaptureFixture) -> None:
    slow = pair.slow()
    for _ in range(CREDIT):
        await slow.tell(Slow.wait_release)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.05):
            await slow.tell(Slow.made)
    with pytest.raises(CallTimedOut, match="credit for"):
        await slow.with_deadline(0.05).call(Slow.let_go)
    other = pair.there.ref(pair.there.address("slow"), Slow)
    await other.call(Slow.let_go)
    assert await slow.call(Slow.made) == 0
    await pair.counter().tell(Counter.fail, "unheard")
    await pair.counter().call(Counter.add, 1)
    assert "unheard" in caplog.text


async def test_closing_the_callee_answers_every_waiter(pair: Pair) -> None:
    calls = [asyncio.ensure_future(pair.slow().call(Slow.hang)) for _ in range(5)]
    stream = pair.slow().stream(Slow.count, 1000)
    assert await anext(stream) == 0
    await pair.slow().call(Slow.has_started)
    await pair.there.close("going home")
    for call in calls:
        with pytest.raises(ActorDied, match="going home"):
            await call
    with pytest.raises(ActorDied):
        async for _ in stream:
            pass


async def test_closing_the_caller_answers_its_own_waiters_and_stops_the_callee(pair: Pair) -> None:
    call = asyncio.ensure_future(pair.slow().call(Slow.hang))
    await pair.slow().call(Slow.has_started)
    await pair.here.close()
    with pytest.raises(ActorDied, match="here died: closed"):
        await call
    with pytest.raises(ActorDied):
        await pair.slow().call(Slow.made)
    assert await pair.there.ref(pair.there.address("slow"), Slow).call(Slow.was_cancelled)


async def test_every_wait_is_named(pair: Pair) -> None:
    call = asyncio.ensure_future(pair.slow().call(Slow.hang))
    await pair.slow().call(Slow.has_started)
    assert [(wait.who, wait.what) for wait in pair.here.waits.snapshot()] == [("slow@there", "Slow.hang")]
    call.cancel()
    await asyncio.wait([call])
    assert pair.here.waits.snapshot() == []


async def test_a_process_that_is_known_to_be_dead_fails_calls_at_once(pair: Pair) -> None:
    call = asyncio.ensure_future(pair.slow().call(Slow.hang))
    await pair.slow().call(Slow.has_started)
    pair.here.peer_died("there", "signal 9 (SIGKILL)")
    for waiting in (call, pair.slow().call(Slow.made)):
        with pytest.raises(ActorDied, match=r"there died: signal 9 \(SIGKILL\)"):
            await waiting


async def test_a_system_reaches_its_own_actors_by_the_same_path(pair: Pair) -> None:
    own = pair.there.ref(pair.there.address("counter"), Counter)
    assert await own.call(Counter.add, 4) == 4
    with pytest.raises(WireError):
        await own.call(Counter.add, "x")  # type: ignore[call-overload]
