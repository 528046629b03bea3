"""Strangers, stale callers and garbage: named refusals, and a system that goes on."""

import asyncio
import random

import msgspec
import pytest
import zmq

from asyncrl.errors import ActorDied, Undeliverable
from asyncrl.runtime import ActorAddress, ActorSystem, RealHost, messages
from asyncrl.runtime.incoming import DECODER as CALLEE_DECODER
from asyncrl.runtime.messages import SCHEMA, VERSION, Call, Cancel, Credit, Goodbye, Hello
from asyncrl.runtime.outgoing import DECODER as CALLER_DECODER
from tests.unit.runtime.runtime_actors import Counter

TOKEN = b"t" * 32
HOST = RealHost()


def bound(folder: str, process: str, *, attempt: str = "a1", generation: int = 0, token: bytes = TOKEN) -> ActorSystem:
    return ActorSystem.bind(process, f"ipc://{folder}/{process}.sock", host=HOST, attempt=attempt, generation=generation, token=token)


@pytest.mark.parametrize(
    ("token", "attempt", "reason"),
    [(b"x" * 32, "a1", "the job token differs"), (b"", "a1", "the job token differs"), (TOKEN, "a0", "attempt 'a0' calls attempt 'a1'")],
)
async def test_a_wrong_token_or_attempt_is_refused_by_name(folder: str, token: bytes, attempt: str, reason: str) -> None:
    async with bound(folder, "there") as there, bound(folder, "here", token=token, attempt=attempt) as here:
        await there.spawn(Counter, name="c")
        ref = here.ref(there.address("c"), Counter)
        async with asyncio.timeout(3):
            with pytest.raises(Undeliverable, match=reason):
                await ref.call(Counter.add, 1)
        assert await there.ref(there.address("c"), Counter).call(Counter.add, 0) == 0


async def test_another_version_is_refused_by_name(folder: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async with bound(folder, "there") as there, bound(folder, "here") as here:
        await there.spawn(Counter, name="c")
        monkeypatch.setattr(here._site.identity.__class__, "hello_to", _old_hello)
        async with asyncio.timeout(3):
            with pytest.raises(Undeliverable, match=rf"version 0\.0\.1 .* calls version {VERSION}"):
                await here.ref(there.address("c"), Counter).call(Counter.add, 1)


def _old_hello(self: object, address: ActorAddress) -> Hello:
    return Hello("0.0.1", SCHEMA, "here", "a1", 0, TOKEN, address.process, address.generation)


async def test_an_address_of_an_earlier_life_is_refused(folder: str) -> None:
    async with bound(folder, "there", generation=1) as there, bound(folder, "here") as here:
        await there.spawn(Counter, name="c")
        old = ActorAddress("there", there.endpoint, "c", "a1", 0)
        with pytest.raises(Undeliverable, match=r"there \(generation 0\) was called, this is there \(generation 1\)"):
            await here.ref(old, Counter).call(Counter.add, 1)


async def test_a_caller_of_an_earlier_generation_is_fenced(folder: str) -> None:
    async with bound(folder, "there") as there:
        await there.spawn(Counter, name="c")
        async with bound(folder, "twin", generation=2) as new:
            await new.ref(there.address("c"), Counter).call(Counter.add, 1)
        async with bound(folder, "twin", generation=1) as old:
            with pytest.raises(Undeliverable, match="generation 1 of twin calls after generation 2"):
                await old.ref(there.address("c"), Counter).call(Counter.add, 1)


async def test_an_endpoint_where_nobody_listens_is_a_dead_process(folder: str) -> None:
    async with bound(folder, "here") as here:
        address = ActorAddress("gone", f"ipc://{folder}/gone.sock", "c", "a1", 0)
        async with asyncio.timeout(5):
            with pytest.raises(ActorDied, match="gone died: nobody listens"):
                await here.ref(address, Counter).call(Counter.add, 1)


def _valid_frames() -> list[bytes]:
    raw = msgspec.Raw(msgspec.msgpack.encode([1]))
    samples = [
        Hello(VERSION, SCHEMA, "p", "a1", 0, TOKEN, "there", 0),
        Call(1, "c", "add", "call", 30.0, 0.0, 0, -1, 0, "", raw),
        Cancel(1),
        Credit(1, 3),
        Goodbye("bye"),
        messages.Reply(1, raw),
        messages.Failure(1, "RuntimeError", "m", "t", {"key": 1}),
        messages.StreamItem(1, raw),
        messages.Welcome("p", 0),
    ]
    return [msgspec.msgpack.encode(sample) for sample in samples]


def _mutated(seed: int, count: int) -> list[bytes]:
    rng = random.Random(seed)
    valid = _valid_frames()
    frames = [b"", b"\xc1", b"\xdd\xff\xff\xff\xff", b"\xdb\xff\xff\xff\xff", b"\x91" * 100_000, b"\x81" * 100_000]
    for _ in range(count):
        frame = bytearray(rng.choice(valid))
        for _ in range(rng.randint(1, 4)):
            kind = rng.randrange(4)
            at = rng.randrange(len(frame)) if frame else 0
            if kind == 0 and frame:
                frame[at] = rng.randrange(256)
            elif kind == 1:
                frame[at:at] = rng.randbytes(rng.randint(1, 8))
            elif kind == 2:
                del frame[at : at + rng.randint(1, 8)]
            else:
                frame = bytearray(rng.randbytes(rng.randint(1, 60)))
        frames.append(bytes(frame))
    return frames


def test_mutated_frames_give_a_message_or_a_decode_error() -> None:
    read = 0
    for frame in _mutated(1, 8000):
        for decoder in (CALLEE_DECODER, CALLER_DECODER):
            try:
                decoder.decode(frame)
                read += 1
            except (msgspec.DecodeError, RecursionError):
                continue
            except ValueError as error:
                assert isinstance(error, UnicodeDecodeError)  # noqa: PT017
    assert 0 < read < 8000


async def test_garbage_at_a_live_socket_changes_nothing_for_others(folder: str, caplog: pytest.LogCaptureFixture) -> None:
    failures: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: failures.append(context))
    caplog.set_level("ERROR")
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    async with bound(folder, "there") as there, bound(folder, "here") as here:
        await there.spawn(Counter, name="c")
        ref = here.ref(there.address("c"), Counter)
        await ref.call(Counter.add, 1)
        stranger, insider = context.socket(zmq.DEALER), context.socket(zmq.DEALER)
        for socket in (stranger, insider):
            socket.connect(there.endpoint)
        for number, frame in enumerate(_mutated(2, 4000)):
            stranger.send_multipart([frame] * (number % 3 + 1))
            insider.send(msgspec.msgpack.encode(Hello(VERSION, SCHEMA, "insider", "a1", 0, TOKEN, "there", 0)))
            insider.send(frame)
            if number % 50 == 0:
                await ref.call(Counter.add, 0)
        assert await ref.call(Counter.add, 1) >= 2
        for socket in (stranger, insider):
            socket.close(linger=0)
    context.term()
    assert not failures


async def test_a_peer_that_answers_garbage_fails_the_calls_to_it(folder: str) -> None:
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    router = context.socket(zmq.ROUTER)
    endpoint = f"ipc://{folder}/liar.sock"
    router.bind(endpoint)

    def lie() -> None:
        for _ in range(2):
            identity = router.recv_multipart()[0]
        router.send_multipart([identity, b"\xc1garbage"])

    async with bound(folder, "here") as here:
        liar = asyncio.get_running_loop().run_in_executor(None, lie)
        with pytest.raises(Exception, match="liar sent a message that cannot be read"):
            await here.ref(ActorAddress("liar", endpoint, "c", "a1", 0), Counter).call(Counter.add, 1)
        await liar
    router.close(linger=0)
    context.term()
