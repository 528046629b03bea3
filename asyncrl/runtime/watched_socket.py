"""A ZeroMQ socket on the event loop.

It is read through its file descriptor, which is edge-triggered and speaks of the socket's mailbox, not of messages: every
callback drains to EAGAIN, and every send looks at EVENTS again.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable

import zmq

from asyncrl.runtime.forks import beware_of_forks
from asyncrl.runtime.transport import Frames

logger = logging.getLogger(__name__)

# Plain numbers: the enumerations of pyzmq cost a microsecond for each use.
NOBLOCK, POLLIN, EVENTS = int(zmq.NOBLOCK), int(zmq.POLLIN), int(zmq.EVENTS)
MORE = int(zmq.NOBLOCK | zmq.SNDMORE)

BATCH = 128
"""Messages read in one go before other callbacks get their turn."""
COPIED = 16384
"""Frames up to this size are copied out of the socket: cheaper than a reference, and aligned."""


class WatchedSocket:
    """A socket with one writer, read by the loop. ``deliver`` gets every message, as ``read`` takes it from the socket."""

    def __init__(
        self,
        socket: "zmq.Socket[bytes]",
        loop: asyncio.AbstractEventLoop,
        deliver: Callable[[list[memoryview]], None],
        read: "Callable[[zmq.Socket[bytes]], list[memoryview]] | None" = None,
    ) -> None:
        self._socket, self._loop, self._deliver, self._read = socket, loop, deliver, read or receive
        self._outbox: dict[bytes, deque[Frames]] = {}
        self._scheduled = False
        self._copied = False
        self._descriptor = number_option(socket, zmq.FD)
        beware_of_forks(self)
        loop.add_reader(self._descriptor, self._ready)
        self._schedule()

    @property
    def closed(self) -> bool:
        return self._copied or self._socket.closed

    def forked(self) -> None:
        """This process is a copy: the socket is its parent's, as is what watches its descriptor. libzmq would never return from a call."""
        self._copied = True

    def send(self, key: bytes, parts: Frames) -> None:
        """Sends now, or queues behind what ``key`` has waiting. Raises zmq.ZMQError for an unreachable peer."""
        if self.closed:
            return
        if key in self._outbox:
            self._outbox[key].append(parts)
            return
        try:
            if not self._try(parts):
                self._outbox[key] = deque([parts])
        finally:
            # A send takes the word of what has arrived off the descriptor, also one that fails: nothing else would tell of it.
            if not self._scheduled and number_option(self._socket, EVENTS) & POLLIN:
                self._schedule()

    def _try(self, parts: Frames) -> bool:
        try:
            # Only the first frame of a message can meet a full queue.
            for part in parts[:-1]:
                self._socket.send(part, MORE, copy=len(part) <= COPIED)
            self._socket.send(parts[-1], NOBLOCK, copy=len(parts[-1]) <= COPIED)
        except zmq.Again:
            return False
        return True

    def _schedule(self) -> None:
        self._scheduled = True
        self._loop.call_soon(self._drain)

    def _drain(self) -> None:
        self._scheduled = False
        self._ready()

    def _ready(self) -> None:
        for number in range(BATCH):
            if self.closed:
                return
            # Whoever wakes this says that something has come; later on, asking costs less than the exception of an empty socket.
            if number and not number_option(self._socket, EVENTS) & POLLIN:
                break
            try:
                frames = self._read(self._socket)
            except zmq.Again:
                break
            except zmq.ZMQError as error:
                logger.warning("cannot read a socket: %s", error)
                return
            self._deliver(frames)
        else:
            if not self._scheduled:
                self._schedule()
        if self._outbox:
            self._flush()

    def _flush(self) -> None:
        for key, waiting in list(self._outbox.items()):
            while waiting:
                try:
                    sent = self._try(waiting[0])
                except zmq.ZMQError:
                    waiting.clear()
                    break
                if not sent:
                    break
                waiting.popleft()
            if not waiting:
                self._outbox.pop(key, None)
        if not self._scheduled and not self.closed and number_option(self._socket, EVENTS) & POLLIN:
            self._schedule()

    def drain_all(self) -> None:
        """Delivers everything that has arrived."""
        while not self.closed:
            try:
                frames = self._read(self._socket)
            except zmq.ZMQError:
                return
            self._deliver(frames)

    def detach(self) -> None:
        """Stops reading; what arrives stays in the socket."""
        if not self._copied:
            self._loop.remove_reader(self._descriptor)

    def close(self, linger: float) -> None:
        if not self.closed:
            self.detach()
            self._socket.close(linger=int(linger * 1000))


def receive(socket: "zmq.Socket[bytes]") -> list[memoryview]:
    """All frames of one message. Raises zmq.Again when there is none."""
    frames = []
    while True:
        # A frame knows whether more follow; asking the socket costs more than the object.
        frame = socket.recv(NOBLOCK, copy=False)
        frames.append(memoryview(frame.bytes) if len(frame) <= COPIED else frame.buffer)
        if not frame.more:
            return frames


def receive_with_role(socket: "zmq.Socket[bytes]") -> list[memoryview]:
    """As ``receive``, behind the role that the doorkeeper gave to the sender's key."""
    first = socket.recv(NOBLOCK, copy=False)
    frames = [memoryview(str(first.get("User-Id")).encode()), memoryview(first.bytes)]
    if first.more:
        frames += receive(socket)
    return frames


def number_option(socket: "zmq.Socket[bytes]", option: int) -> int:
    """A socket option that is a number."""
    value = socket.getsockopt(option)
    assert isinstance(value, int)
    return value
