"""Peers that speak to a bound system over raw sockets, and a callee that lies. All on threads of their own."""

import contextlib
import threading
from collections import Counter
from collections.abc import Iterator
from functools import partial
from types import TracebackType
from typing import Any, Self

import msgspec
import zmq

from asyncrl.runtime import Keyring
from asyncrl.runtime.cork import deliver
from asyncrl.runtime.messages import TO_CALLEE, TO_CALLER, Call, Failure, Hello, Refused, Reply, StreamItem, Welcome
from asyncrl.runtime.sharing_messages import is_marked
from tests.fuzz.mutation import TOKEN, Mutator, call, hello, plausible_to_callee, plausible_to_caller, to_callee, to_caller

ANSWERS: msgspec.msgpack.Decoder[Any] = msgspec.msgpack.Decoder(TO_CALLER)
QUESTIONS: msgspec.msgpack.Decoder[Any] = msgspec.msgpack.Decoder(TO_CALLEE)
PATIENCE = 5000
"""Milliseconds that a peer may owe an answer."""
BARRIER = 2**50
"""Call numbers from here on are asked to see that everything before them was read."""


def messages_of(frames: list[bytes]) -> list[bytes]:
    """The envelopes of one transport message. What is said about shared memory is none."""
    found: list[bytes] = []
    deliver([memoryview(frame) for frame in frames], lambda message: found.append(bytes(message[0])))
    return [header for header in found if not is_marked(memoryview(header))]


NAMES = 200


class Attack:
    """One connection to ``endpoint`` that sends broken messages. ``answers`` counts what came back, by kind.

    With the job's ``token`` it says hello whenever its connection was ended, without it never does.
    """

    def __init__(
        self, endpoint: str, target: str, seed: int, token: bytes = TOKEN, process: str = "insider", keys: Keyring | None = None
    ) -> None:
        self.answers: Counter[str] = Counter()
        self._endpoint, self._keys, self._inside = endpoint, keys, token == TOKEN or keys is not None
        role, token = (keys.role, keys.token) if keys is not None else ("", token)
        # Some names: a mutated hello may claim a later life of one, which bars it to the next ones.
        greetings = [hello(target, token, f"{process}-{number}", role) for number in range(NAMES)]
        self._hellos = [msgspec.msgpack.encode(each) for each in greetings]
        self._mutator = Mutator(seed, to_callee(greetings[0]), plausible_to_callee)
        self._barriers = BARRIER

    def run(self, count: int, burst: int = 1) -> None:
        """Sends ``count`` broken messages and reads the answers to each ``burst`` of them, the right ones to its own sound calls
        among them. Raises zmq.Again when the peer does not answer, AssertionError when it answers what it must not."""
        with self._connected() as socket:
            admitted = False
            for number in range(0, count, burst):
                if self._inside and not admitted:
                    socket.send(self._hellos[number // burst % NAMES])
                for _ in range(burst):
                    socket.send_multipart(self._mutator.transport_message())
                admitted = self._is_admitted(socket)
                if not admitted:
                    self._catch_up(socket)

    def flood(self, count: int) -> None:
        """Sends ``count`` broken messages as fast as the peer takes them, and reads nothing."""
        with self._connected() as socket:
            for number in range(count):
                if self._inside and number % 3 == 0:
                    socket.send(self._hellos[number % NAMES])
                socket.send_multipart(self._mutator.transport_message())
            self._catch_up(socket)

    def is_not_heard(self, count: int) -> None:
        """Sends ``count`` broken messages to a peer that has no key in common with this one, and gets nothing back."""
        with self._connected() as socket:
            socket.setsockopt(zmq.SNDTIMEO, 0)
            socket.setsockopt(zmq.RCVTIMEO, 20)
            for number in range(count):
                with contextlib.suppress(zmq.Again):
                    socket.send(self._hellos[number % NAMES])
                    socket.send_multipart(self._mutator.transport_message())
                if number % 100 == 0:
                    with contextlib.suppress(zmq.Again):
                        raise AssertionError(f"an answer to a stranger: {socket.recv_multipart()}")

    @contextlib.contextmanager
    def _connected(self) -> "Iterator[zmq.Socket[bytes]]":
        context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        socket = context.socket(zmq.DEALER)
        socket.setsockopt(zmq.LINGER, 0)
        socket.setsockopt(zmq.RCVTIMEO, PATIENCE)
        socket.setsockopt(zmq.SNDTIMEO, PATIENCE)
        if self._keys is not None:
            socket.setsockopt(zmq.CURVE_SERVERKEY, self._keys.servers[self._keys.role])
            socket.setsockopt(zmq.CURVE_SECRETKEY, self._keys.secret)
            socket.setsockopt(zmq.CURVE_PUBLICKEY, self._keys.public)
        socket.connect(self._endpoint)
        try:
            yield socket
        finally:
            socket.close()
            context.term()

    def _is_admitted(self, socket: "zmq.Socket[bytes]") -> bool:
        """Asks a sound call and waits for its answer, or for the refusal of one, because the connection was ended before it."""
        self._barriers += 1
        socket.send(msgspec.msgpack.encode(call(self._barriers, "add", [5])))
        while True:
            for answer in self._heard(socket):
                if isinstance(answer, Reply | Failure) and answer.id == self._barriers:
                    return True
                # A mutated call may have had a number that no later one is above.
                if isinstance(answer, Refused) and ("before the hello" in answer.reason or f"call {self._barriers} " in answer.reason):
                    return False

    def _catch_up(self, socket: "zmq.Socket[bytes]") -> None:
        """Reads until the refusal of something unreadable that is unique."""
        self._barriers += 1
        mark = f"barrier-{self._barriers}"
        socket.send(msgspec.msgpack.encode([mark]))
        while not any(isinstance(answer, Refused) and mark in answer.reason for answer in self._heard(socket)):
            pass

    def _heard(self, socket: "zmq.Socket[bytes]") -> list[Any]:
        heard = [ANSWERS.decode(header) for header in messages_of(socket.recv_multipart())]
        for answer in heard:
            self.answers[type(answer).__name__] += 1
            assert self._inside or isinstance(answer, Refused)
        return heard


class Liar:
    """A callee that answers every call with broken messages before, now and then, the right one."""

    def __init__(self, endpoint: str, seed: int, lies: int) -> None:
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._router = self._context.socket(zmq.ROUTER)
        self._router.setsockopt(zmq.LINGER, 0)
        self._router.bind(endpoint)
        bound: bytes = self._router.getsockopt(zmq.LAST_ENDPOINT)  # type: ignore[assignment]
        self.endpoint = bound.rstrip(b"\0").decode()
        self._stop = self._context.socket(zmq.PAIR)
        self._stop.bind("inproc://stop")
        self._seed, self._lies = seed, lies
        self.told = 0
        self._thread = threading.Thread(target=self._run, name="liar")

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        with self._context.socket(zmq.PAIR) as stop:
            stop.connect("inproc://stop")
            stop.send(b"")
            self._thread.join(10)
        assert not self._thread.is_alive()
        self._stop.close(0)
        self._context.term()

    @property
    def alive(self) -> bool:
        """Whether it still lies."""
        return self._thread.is_alive()

    def _run(self) -> None:
        poller = zmq.Poller()
        poller.register(self._router, zmq.POLLIN)
        poller.register(self._stop, zmq.POLLIN)
        mutator = Mutator(self._seed, to_caller(1), partial(plausible_to_caller, 1))
        while True:
            ready = dict(poller.poll())
            if self._stop in ready:
                # Without a linger libzmq 4.3.5 aborts the process when a peer leaves in this moment, before all frames of a message.
                self._router.close(1000)
                return
            identity, *frames = self._router.recv_multipart()
            for header in messages_of(frames):
                question = QUESTIONS.decode(header)
                if isinstance(question, Hello):
                    self._say(identity, [msgspec.msgpack.encode(Welcome("liar", 0))])
                elif isinstance(question, Call):
                    self._lie(identity, question, mutator)

    def _lie(self, identity: bytes, question: Call, mutator: Mutator) -> None:
        mutator.samples, mutator.plausible = to_caller(question.id), partial(plausible_to_caller, question.id)
        for _ in range(mutator.random.randint(1, self._lies)):
            self._say(identity, mutator.transport_message())
            self.told += 1
        if mutator.random.random() < 0.3:
            self._say(identity, [msgspec.msgpack.encode(Reply(question.id, msgspec.Raw(b"\x05")))])

    def _say(self, identity: bytes, frames: list[bytes]) -> None:
        self._router.send_multipart([identity, *frames])


class Flooder(Liar):
    """A callee that answers a stream with ``items`` items of ``size`` bytes at once, whatever its caller allows."""

    def __init__(self, endpoint: str, items: int, size: int) -> None:
        super().__init__(endpoint, 0, 0)
        self._items, self._size = items, size

    def _lie(self, identity: bytes, question: Call, mutator: Mutator) -> None:
        value = msgspec.Raw(msgspec.msgpack.encode(bytes(self._size)))
        for place in range(self._items):
            self._say(identity, [msgspec.msgpack.encode(StreamItem(question.id, value, place))])
            self.told += 1
