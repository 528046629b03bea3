"""libzmq connects anew behind the caller's back, without a hello: what was sent on the second connection has reached nobody, and what
ran on the first one is not denied."""

import asyncio
from collections.abc import Iterator, Sequence

import msgspec
import pytest
import zmq

from asyncrl.errors import ActorDied
from asyncrl.runtime import Actor, ActorAddress, ActorRef, ActorSystem, MemoryNetwork, RealHost, endpoint
from asyncrl.runtime.cork import deliver
from asyncrl.runtime.memory import MemoryTransport
from asyncrl.runtime.messages import TO_CALLEE, TO_CALLER, Call, Hello, Message, Refused, Reply, Welcome
from asyncrl.runtime.sharing_messages import MARK

EARLY = "a message came before the hello"
DECODER: msgspec.msgpack.Decoder[Message] = msgspec.msgpack.Decoder(TO_CALLEE)
PATIENCE = 3000
"""Milliseconds that a peer waits for a message."""


class Notes(Actor):
    """What the peer is said to be."""

    concurrency = 0

    @endpoint
    async def write(self, text: str) -> str:
        return text

    @endpoint(idempotent=True)
    async def write_again(self, text: str) -> str:
        return text


class RawPeer:
    """A process that says by hand what a callee says. It works while the event loop stands still."""

    def __init__(self, folder: str) -> None:
        self.context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self.address = ActorAddress("peer", f"ipc://{folder}/peer.sock", "notes", "a1", 0)
        self.open()

    def open(self) -> None:
        self.router = self.context.socket(zmq.ROUTER)
        self.router.setsockopt(zmq.LINGER, 0)
        self.connections = self.router.get_monitor_socket(zmq.EVENT_HANDSHAKE_SUCCEEDED)
        self.router.bind(self.address.endpoint)

    def open_anew(self) -> None:
        """Cuts all connections; returns when a caller has connected again by itself."""
        self.shut()
        self.open()
        assert self.connections.poll(PATIENCE), "nobody came back"

    def shut(self) -> None:
        self.router.disable_monitor()
        self.connections.close(0)
        self.router.close()

    def next(self) -> tuple[bytes, list[Message]]:
        """The messages of the next transport message, and whose they are."""
        assert self.router.poll(PATIENCE), "nothing came"
        identity, *frames = self.router.recv_multipart()
        found: list[memoryview] = []
        deliver([memoryview(frame) for frame in frames], lambda message: found.append(message[0]))
        # What is said about shared memory begins with its mark.
        return identity, [DECODER.decode(message) for message in found if message[:1] != MARK]

    def call(self, text: str, number: int) -> tuple[bytes, Call]:
        """The call with this argument and number; every hello before it is answered."""
        encoded = msgspec.msgpack.encode([text])
        while True:
            identity, messages = self.next()
            for message in messages:
                if isinstance(message, Hello):
                    self.say(identity, Welcome("peer", 0))
                elif isinstance(message, Call) and (message.id, bytes(message.arguments)) == (number, encoded):
                    return identity, message

    def say(self, identity: bytes, message: Message) -> None:
        self.router.send_multipart([identity, msgspec.msgpack.encode(message)])

    def close(self) -> None:
        self.shut()
        self.context.term()


@pytest.fixture
def peer(folder: str) -> Iterator[RawPeer]:
    made = RawPeer(folder)
    yield made
    made.close()


def bound(folder: str) -> ActorSystem:
    return ActorSystem.bind("here", f"ipc://{folder}/here.sock", host=RealHost(), attempt="a1", watching=None)


def reply_to(call: Call, text: str) -> Reply:
    return Reply(call.id, msgspec.Raw(msgspec.msgpack.encode(text)))


@pytest.mark.parametrize("welcomed", [True, False])
async def test_a_refusal_of_a_second_connection_means_that_the_first_is_lost(folder: str, peer: RawPeer, welcomed: bool) -> None:
    async with bound(folder) as here:
        notes: ActorRef[Notes] = here.ref(peer.address, Notes)
        plain = asyncio.ensure_future(notes.call(Notes.write, "a"))
        again = asyncio.ensure_future(notes.call(Notes.write_again, "b"))
        identity, messages = await asyncio.to_thread(peer.next)
        assert isinstance(messages[0], Hello)
        if welcomed:
            peer.say(identity, Welcome("peer", 0))
        peer.say(identity, Refused(EARLY, before_hello=True))
        with pytest.raises(ActorDied, match="peer died: connection lost") as caught:
            await plain
        assert caught.value.lost
        # The first call of another connection.
        identity, repeated = await asyncio.to_thread(peer.call, "b", 1)
        peer.say(identity, reply_to(repeated, "kept"))
        assert await again == "kept"


async def test_a_cut_while_the_loop_is_busy_is_a_lost_connection_to_every_call(folder: str, peer: RawPeer) -> None:
    async with bound(folder) as here:
        notes: ActorRef[Notes] = here.ref(peer.address, Notes).with_deadline(20)
        plain = asyncio.ensure_future(notes.call(Notes.write, "a"))
        again = asyncio.ensure_future(notes.call(Notes.write_again, "b"))
        identity, answered = await asyncio.to_thread(peer.call, "a", 1)
        peer.say(identity, reply_to(answered, "an answer shows that the loop has heard the welcome"))
        await plain

        plain = asyncio.ensure_future(notes.call(Notes.write, "c"))
        await asyncio.to_thread(peer.call, "c", 3)
        # From here to the last line of ``refuse`` the loop reads nothing: it does not hear of the cut.
        peer.open_anew()
        late = asyncio.ensure_future(notes.call(Notes.write, "d"))
        refused: list[Message] = []

        def refuse() -> None:
            while True:
                identity, messages = peer.next()
                if messages:
                    break
            refused.append(messages[0])
            peer.say(identity, Refused(EARLY, before_hello=True))

        asyncio.get_running_loop().call_soon(refuse)
        for call in (plain, late):
            with pytest.raises(ActorDied, match="peer died: connection lost") as caught:
                await call
            assert caught.value.lost
        assert isinstance(refused[0], Call)
        identity, repeated = await asyncio.to_thread(peer.call, "b", 1)
        peer.say(identity, reply_to(repeated, "kept"))
        assert await again == "kept"


class Stranger:
    """The end of a link that did not say hello."""

    admitted = True

    def __init__(self) -> None:
        self.heard: list[Message] = []
        self.ended = asyncio.Event()

    def received(self, frames: Sequence[memoryview]) -> None:
        self.heard.append(msgspec.msgpack.decode(frames[0], type=TO_CALLER))

    def lost(self, cause: str) -> None:
        self.ended.set()

    def refused(self, cause: str) -> None:
        self.ended.set()

    def broken(self, seen: str) -> None:
        self.ended.set()


async def test_a_callee_says_that_a_message_came_before_the_hello() -> None:
    network = MemoryNetwork()
    async with ActorSystem.local(process="there", network=network):
        transport, stranger = MemoryTransport("memory://stranger", network), Stranger()
        link = transport.connect("memory://there", stranger)
        call = Call(1, "notes", "write", "call", 0.0, 0.0, 0, -1, 0, "", msgspec.Raw(msgspec.msgpack.encode(["x"])))
        link.send([msgspec.msgpack.encode(call)])
        await asyncio.wait_for(stranger.ended.wait(), 3)
        assert stranger.heard == [Refused(EARLY, before_hello=True)]
        await transport.close()
