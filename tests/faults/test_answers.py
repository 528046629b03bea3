"""Answers that are hard to carry: every error of the tree, huge texts, deep nesting, results that are too large."""

from collections.abc import AsyncIterator
from typing import Any

import pytest

from asyncrl.errors import CallFailed, WireError
from asyncrl.runtime import Actor, ActorRef, ActorSystem, RealHost, endpoint, register_codec
from tests.faults.conftest import StartPeer
from tests.faults.fault_actors import SAMPLES, Worker
from tests.faults.promises import promised
from tests.faults.systems import bind


@pytest.fixture
async def worker(start_peer: StartPeer, caller: ActorSystem) -> ActorRef[Worker]:
    return (await start_peer()).worker(caller)


async def test_every_error_of_the_tree_arrives_as_itself(worker: ActorRef[Worker]) -> None:
    assert len(SAMPLES) > 20
    for kind, sample in SAMPLES.items():
        with pytest.raises(type(sample)) as caught:
            await worker.call(Worker.fail_as, kind)
        assert type(caught.value) is type(sample)
        assert str(caught.value) == str(sample)
        seen = {name: value for name, value in vars(caught.value).items() if name != "__notes__"}
        assert seen == vars(sample)
        assert any("Worker.fail_as on worker@there" in note for note in caught.value.__notes__)
    assert await worker.call(Worker.echo, 1) == 1


async def test_a_traceback_of_a_megabyte_is_cut_and_still_says_where(worker: ActorRef[Worker]) -> None:
    async with promised(1.0, "error with a text of 1 MB raised 400 frames deep"):
        with pytest.raises(CallFailed) as caught:
            await worker.call(Worker.fail_deeply, 400)
    assert caught.value.kind == "RuntimeError"
    assert len(caught.value.message) <= 65536
    assert len(caught.value.remote_traceback) <= 65536
    assert "fail_deeply" in caught.value.remote_traceback


def nested(depth: int) -> list[Any]:
    deep: list[Any] = []
    for _ in range(depth):
        deep = [deep]
    return deep


async def test_an_argument_that_is_nested_too_deeply_is_refused_at_the_sender(worker: ActorRef[Worker]) -> None:
    deep = nested(100_000)
    async with promised(1.0, "argument of 100,000 nested lists"):
        with pytest.raises(WireError, match="cannot encode"):
            await worker.call(Worker.anything, deep)
    assert await worker.call(Worker.anything, nested(8)) is True
    while deep:
        # Freed one by one: the interpreter's own recursion is bounded too.
        deep = deep.pop()


@pytest.fixture
def small_frames(monkeypatch: pytest.MonkeyPatch) -> int:
    """A limit that a test can reach."""
    from asyncrl.runtime import codec, zeromq

    limit = 1 << 20
    for module in (codec, zeromq):
        monkeypatch.setattr(module, "MAX_FRAME_BYTES", limit)
    return limit


async def test_what_is_larger_than_a_frame_is_refused_by_name_in_both_directions(
    folder: str, caller: ActorSystem, small_frames: int
) -> None:
    async with bind("there", f"ipc://{folder}/there.sock", RealHost()) as there:
        await there.spawn(Worker, name="worker")
        worker = caller.ref(there.address("worker"), Worker)
        async with promised(1.0, "result larger than a frame"):
            with pytest.raises(WireError, match=f"at most {small_frames} travel"):
                await worker.call(Worker.bytes_of, small_frames + 1)
        async with promised(1.0, "argument larger than a frame"):
            with pytest.raises(WireError, match=f"at most {small_frames} travel"):
                await worker.call(Worker.length, bytes(small_frames + 1))
        async with promised(1.0, "item larger than a frame"):
            with pytest.raises(WireError, match=f"at most {small_frames} travel"):
                await anext(worker.stream(Worker.items, small_frames + 1, 3))
        assert await worker.call(Worker.length, bytes(small_frames // 2)) == small_frames // 2


class Fragile:
    """A registered class whose buffers cannot always be read back."""

    def __init__(self, error: str) -> None:
        self.error = error


ERRORS: dict[str, type[Exception]] = {kind.__name__: kind for kind in (RuntimeError, OverflowError, AssertionError, BufferError, OSError)}


def _pack(value: Fragile) -> tuple[Any, list[Any]]:
    return value.error, [b"x"]


def _unpack(head: Any, frames: list[memoryview]) -> Fragile:
    raise ERRORS[head]("cannot be read back")


register_codec(Fragile, _pack, _unpack)


class Producer(Actor):
    """Answers with what its caller cannot read."""

    concurrency = 0

    @endpoint
    async def make(self, error: str) -> Fragile:
        return Fragile(error)

    @endpoint
    async def several(self, error: str) -> AsyncIterator[Fragile]:
        yield Fragile(error)

    @endpoint
    async def take(self, value: Fragile) -> None:
        return None


async def test_what_a_codec_cannot_read_back_is_a_wire_error_on_either_side(folder: str, caller: ActorSystem) -> None:
    async with bind("there", f"ipc://{folder}/there.sock", RealHost()) as there:
        await there.spawn(Producer, name="producer")
        producer = caller.ref(there.address("producer"), Producer).with_deadline(2)
        for name in ERRORS:
            with pytest.raises(WireError, match="cannot be read back"):
                await producer.call(Producer.make, name)
            with pytest.raises(WireError, match="cannot be read back"):
                await anext(producer.stream(Producer.several, name))
            with pytest.raises(WireError, match="cannot be read back"):
                await producer.call(Producer.take, Fragile(name))
