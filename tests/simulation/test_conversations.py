"""Peers that say what no peer of ours would say, word by word: each gets, or gives, a typed error."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

import msgspec
import pytest

from asyncrl.errors import ActorDied, WireError
from asyncrl.runtime import ActorAddress, ActorRef
from asyncrl.runtime.codec import ENCODER
from asyncrl.runtime.messages import (
    TO_CALLEE,
    TO_CALLER,
    Accepted,
    Call,
    Cancel,
    Failure,
    Message,
    Refused,
    Reply,
    StreamEnd,
    StreamItem,
    Welcome,
)
from asyncrl.runtime.security import Identity
from asyncrl.runtime.simulation import Faults, Simulation
from asyncrl.runtime.transport import Link, Receiver
from tests.unit.runtime.runtime_actors import Counter, Slow

TOKEN = b"simulated" * 4


def raw(value: Any) -> msgspec.Raw:
    """A value as an endpoint's types would read it."""
    return msgspec.Raw(msgspec.msgpack.encode(value))


class Speaker:
    """One end of a connection that is led by hand."""

    admitted = True

    def __init__(self, kinds: Any, answer: Callable[["Speaker", Message], None] | None = None) -> None:
        self.heard: list[Message] = []
        self.ends: list[str] = []
        self.link: Link | None = None
        self._decoder: msgspec.msgpack.Decoder[Message] = msgspec.msgpack.Decoder(kinds)
        self._answer = answer

    def say(self, message: Message) -> None:
        assert self.link is not None
        self.link.send([ENCODER.encode(message)])

    def received(self, frames: Sequence[memoryview]) -> None:
        message = self._decoder.decode(frames[0])
        self.heard.append(message)
        if self._answer is not None:
            self._answer(self, message)

    def lost(self, cause: str) -> None:
        self.ends.append(cause)

    def refused(self, cause: str) -> None:
        self.ends.append(cause)

    def broken(self, seen: str) -> None:
        self.ends.append(seen)


def calling(simulation: Simulation, node: str, target: ActorAddress, generation: int = 0) -> Speaker:
    """A caller that has said hello."""
    speaker = Speaker(TO_CALLER)
    speaker.link = simulation.network.transport(f"{node}#{generation}").connect(target.endpoint, speaker)
    speaker.say(Identity(node, target.attempt, generation, TOKEN).hello_to(target))
    return speaker


def call(number: int, actor: str, method: str, *arguments: Any) -> Call:
    """A plain call."""
    return Call(number, actor, method, "call", 0.0, 0.0, 0, -1, 0, "", raw(arguments))


async def test_a_call_that_comes_again_after_its_answer_is_refused_and_not_run() -> None:
    simulation = Simulation(1)
    async with simulation.system("there") as there:
        await there.spawn(Counter, name="counter")
        speaker = calling(simulation, "p", there.address("counter"))
        for number in (1, 2, 1):
            speaker.say(call(number, "counter", "add", 1))
        await asyncio.sleep(1.0)
        assert isinstance(speaker.heard[0], Welcome)
        assert [type(message) for message in speaker.heard[1:] if not isinstance(message, Refused)] in ([], [Reply], [Reply, Reply])
        refused = [message for message in speaker.heard if isinstance(message, Refused)]
        assert [message.reason for message in refused] == ["call 1 comes twice, or after call 2"]
        assert await there.ref(there.address("counter"), Counter).call(Counter.add, 0) <= 2


async def test_a_newer_life_ends_the_connections_of_the_older_one() -> None:
    simulation = Simulation(1)
    async with simulation.system("there") as there:
        await there.spawn(Slow, name="slow")
        slow = there.ref(there.address("slow"), Slow)
        old = calling(simulation, "p", there.address("slow"), generation=1)
        old.say(call(1, "slow", "hang"))
        await slow.call(Slow.has_started)
        new = calling(simulation, "p", there.address("slow"), generation=2)
        assert await slow.call(Slow.was_cancelled)
        old.say(call(2, "slow", "made"))
        new.say(call(1, "slow", "made"))
        await asyncio.sleep(1.0)
        assert [type(message) for message in new.heard] == [Welcome, Reply]
        assert not any(isinstance(message, Reply) for message in old.heard)
        refused = [message.reason for message in old.heard if isinstance(message, Refused)]
        assert refused[0] == "generation 2 of p has taken its place"


@pytest.mark.parametrize("streams", [False, True])
async def test_a_call_of_a_caller_that_has_gone_without_a_word_ends(streams: bool) -> None:
    """The accepting end has the manners of a ROUTER: only sending tells it."""
    simulation = Simulation(1, Faults(routers=1.0))
    async with simulation.system("there") as there, simulation.system("here") as here:
        await there.spawn(Slow, name="slow")
        ref = here.ref(there.address("slow"), Slow).with_deadline(1000.0)
        if streams:
            items = ref.stream(Slow.count, 1000)
            assert await anext(items) == 0
        else:
            waiting = asyncio.ensure_future(ref.call(Slow.hang))
            await ref.call(Slow.has_started)
        simulation.network.cut("there#0", "here#0")
        with pytest.raises(ActorDied):
            await (collect(items, []) if streams else waiting)
        async with asyncio.timeout(6.0):
            assert await there.ref(there.address("slow"), Slow).call(Slow.was_cancelled)


async def collect(items: AsyncIterator[int], seen: list[int]) -> None:
    """Takes what is left of a stream."""
    async for item in items:
        seen.append(item)


Script = Callable[[Speaker, Call], None]


@contextlib.asynccontextmanager
async def answered_by(script: Script) -> AsyncIterator[ActorRef[Slow]]:
    """A reference to an actor whose answers follow a script. Nothing waits in the end."""
    simulation = Simulation(1)

    def answer(speaker: Speaker, message: Message) -> None:
        if isinstance(message, Call):
            script(speaker, message)
        elif isinstance(message, Cancel):
            speaker.say(Failure(message.id, "CancelledError", "cancelled", "", None))

    speaker = Speaker(TO_CALLEE, answer)

    def accept(link: Link) -> Receiver:
        speaker.link = link
        speaker.say(Welcome("liar", 0))
        return speaker

    simulation.network.transport("liar#0").listen(accept)
    async with simulation.system("here") as here:
        yield here.ref(ActorAddress("liar", "sim://liar#0", "slow", "simulated", 0), Slow).with_deadline(5.0)
        await asyncio.sleep(1.0)
        assert here.waits.snapshot() == []


def items(*places: int) -> Script:
    """A stream whose items say that they have these places; then it ends."""

    def script(speaker: Speaker, call: Call) -> None:
        for place in places:
            speaker.say(StreamItem(call.id, raw(place), place))
        speaker.say(StreamEnd(call.id, len(places)))

    return script


@pytest.mark.parametrize(
    ("script", "before", "reason"),
    [
        (items(0, 1, 3), 2, r"item 3 of Slow\.count on slow@liar came, item 2 was expected"),
        (items(0, 1, 1), 2, r"item 1 of Slow\.count on slow@liar came, item 2 was expected"),
        (items(1), 0, r"item 1 of Slow\.count on slow@liar came, item 0 was expected"),
        (lambda speaker, call: speaker.say(StreamEnd(call.id, 3)), 0, r"slow@liar ended Slow\.count after 3 items, 0 came"),
        (lambda speaker, call: speaker.say(Reply(call.id, raw(3))), 0, r"slow@liar answered Slow\.count, a stream, as a call"),
    ],
)
async def test_a_stream_with_a_gap_a_double_or_a_wrong_end_fails_after_the_items_before(script: Script, before: int, reason: str) -> None:
    seen: list[int] = []
    async with answered_by(script) as ref:
        with pytest.raises(WireError, match=reason):
            await collect(ref.stream(Slow.count, 3), seen)
    assert seen == list(range(before))


@pytest.mark.parametrize("ending", [Accepted, StreamEnd])
async def test_a_call_that_ends_without_a_result_fails(ending: type[Accepted | StreamEnd]) -> None:
    async with answered_by(lambda speaker, call: speaker.say(ending(call.id))) as ref:
        with pytest.raises(WireError, match=r"slow@liar ended Slow\.made without a result"):
            await ref.call(Slow.made)


async def test_a_tell_that_is_answered_like_a_call_is_over() -> None:
    async with answered_by(lambda speaker, call: speaker.say(Reply(call.id, raw("not an int")))) as ref:
        await ref.tell(Slow.made)
