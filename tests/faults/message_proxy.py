"""A ZeroMQ proxy that hurts whole messages between a caller and a callee: drop, delay, duplicate, reorder, replay."""

import heapq
import itertools
import random
import threading
import time
from collections import Counter, deque
from collections.abc import Callable
from types import TracebackType
from typing import Any, Self

import msgspec
import zmq

from asyncrl.runtime.cork import deliver

Socket = zmq.Socket[bytes]
Message = list[bytes]

REMEMBERED = 64
"""Messages of each client and direction that may be replayed later."""


class Chaos(msgspec.Struct, frozen=True):
    """Shares of the messages of one direction that meet each fault; ``kinds`` names the messages concerned, () is all.

    ``seconds`` is the longest delay. A reordered message is held until the next one of its client has passed it, or for as long.
    """

    drop: float = 0.0
    duplicate: float = 0.0
    delay: float = 0.0
    reorder: float = 0.0
    replay: float = 0.0
    seconds: float = 0.05
    kinds: tuple[str, ...] = ()


PEACE = Chaos()


class Way:
    """One direction of one client: where its messages go, the one that is held back, and the last ones that passed."""

    def __init__(self, name: str, target: Socket, prefix: Message) -> None:
        self.name, self.target, self.prefix = name, target, prefix
        self.held: Message | None = None
        self.past: deque[Message] = deque(maxlen=REMEMBERED)


class MessageProxy:
    """Listens at ``endpoint`` (as bound) on a thread of its own; every client gets a connection of its own to ``target``.

    ``to_callee`` and ``to_caller`` may be replaced at any time. ``seen`` counts messages and faults by (direction, kind, fate).
    """

    def __init__(self, target: str, listen: str = "tcp://127.0.0.1:*", seed: int = 0) -> None:
        self.to_callee, self.to_caller = PEACE, PEACE
        self.seen: Counter[tuple[str, str, str]] = Counter()
        self._random = random.Random(seed)
        self._target = target
        self._context: zmq.Context[Socket] = zmq.Context()
        self._front = self._socket(zmq.ROUTER)
        self._front.bind(listen)
        bound: bytes = self._front.getsockopt(zmq.LAST_ENDPOINT)  # type: ignore[assignment]
        self.endpoint = bound.rstrip(b"\0").decode()
        self._poller = zmq.Poller()
        self._poller.register(self._front, zmq.POLLIN)
        self._clients: dict[bytes, tuple[Way, Way]] = {}
        self._later: list[tuple[float, int, Callable[[], None]]] = []
        self._order = itertools.count()
        self._stop = self._context.socket(zmq.PAIR)
        self._stop.bind("inproc://stop")
        self._thread = threading.Thread(target=self._run, name="message proxy")

    def _socket(self, kind: int) -> Socket:
        made = self._context.socket(kind)
        made.setsockopt(zmq.LINGER, 0)
        made.setsockopt(zmq.SNDHWM, 0)
        made.setsockopt(zmq.RCVHWM, 0)
        return made

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

    def faults(self, fate: str) -> int:
        """How many messages met ``fate``."""
        return sum(count for (_, _, met), count in self.seen.items() if met == fate)

    def _run(self) -> None:
        self._poller.register(self._stop, zmq.POLLIN)
        while True:
            now = time.monotonic()
            while self._later and self._later[0][0] <= now:
                heapq.heappop(self._later)[2]()
            timeout = max(0, int(1000 * (self._later[0][0] - now)) + 1) if self._later else None
            for ready, _ in self._poller.poll(timeout):
                if ready is self._stop:
                    for there, _ in self._clients.values():
                        there.target.close(0)
                    self._front.close(0)
                    return
                self._drain(ready)

    def _drain(self, ready: Any) -> None:
        """Reads at most some messages, so that delayed ones get their turn."""
        for _ in range(100):
            try:
                frames = ready.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return
            if ready is self._front:
                there, _ = self._client(frames[0])
                for message in apart(frames[1:]):
                    self._hurt(there, message, self.to_callee)
            else:
                back = next(back for there, back in self._clients.values() if there.target is ready)
                for message in apart(frames):
                    self._hurt(back, message, self.to_caller)

    def _client(self, identity: bytes) -> tuple[Way, Way]:
        found = self._clients.get(identity)
        if found is None:
            dealer = self._socket(zmq.DEALER)
            dealer.connect(self._target)
            self._poller.register(dealer, zmq.POLLIN)
            found = self._clients[identity] = Way("to callee", dealer, []), Way("to caller", self._front, [identity])
        return found

    def _hurt(self, way: Way, message: Message, chaos: Chaos) -> None:
        kind = kind_of(message)
        if chaos is PEACE or (chaos.kinds and kind not in chaos.kinds):
            self._count(way, kind, "passed")
            self._pass(way, message)
            return
        draw = self._random.random
        if draw() < chaos.drop:
            self._count(way, kind, "dropped")
            return
        if way.held is None and draw() < chaos.reorder:
            self._count(way, kind, "reordered")
            way.held = message
            self._at(chaos.seconds, lambda: self._release(way, message))
            return
        self._count(way, kind, "passed")
        if draw() < chaos.delay:
            self._count(way, kind, "delayed")
            self._at(draw() * chaos.seconds, lambda: self._pass(way, message))
        else:
            self._pass(way, message)
        if draw() < chaos.duplicate:
            self._count(way, kind, "duplicated")
            self._pass(way, message)
        if way.past and draw() < chaos.replay:
            self._count(way, kind, "replayed")
            self._pass(way, self._random.choice(way.past))

    def _at(self, seconds: float, act: Callable[[], None]) -> None:
        heapq.heappush(self._later, (time.monotonic() + seconds, next(self._order), act))

    def _count(self, way: Way, kind: str, fate: str) -> None:
        self.seen[way.name, kind, fate] += 1

    def _pass(self, way: Way, message: Message) -> None:
        way.past.append(message)
        way.target.send_multipart([*way.prefix, *message])
        if way.held is not None:
            self._release(way, way.held)

    def _release(self, way: Way, message: Message) -> None:
        if way.held is message:
            way.held = None
            way.target.send_multipart([*way.prefix, *message])


def apart(frames: Message) -> list[Message]:
    """The messages of one transport message: a busy link joins small ones."""
    found: list[Message] = []
    deliver([memoryview(frame) for frame in frames], lambda message: found.append([bytes(frame) for frame in message]))
    return found


def kind_of(message: Message) -> str:
    """The tag of an envelope, "?" for what is none."""
    try:
        first = msgspec.msgpack.decode(message[0])[0]
    except (msgspec.DecodeError, LookupError, TypeError, RecursionError):
        return "?"
    return first if isinstance(first, str) else "?"
