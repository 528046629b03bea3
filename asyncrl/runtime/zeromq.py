"""Links over ZeroMQ: one ROUTER for what comes in, one DEALER for each peer that is called.

Sockets are read through their file descriptor on the event loop. That descriptor is edge-triggered and speaks of the
socket's mailbox, not of messages: every callback drains to EAGAIN, and every send looks at EVENTS again.
"""

import asyncio
import logging
import struct
from collections import deque
from collections.abc import Callable

import zmq

from asyncrl.errors import WireError
from asyncrl.runtime.codec import MAX_FRAME_BYTES
from asyncrl.runtime.cork import Cork, deliver
from asyncrl.runtime.transport import Frames, Link, Receiver

logger = logging.getLogger(__name__)

# Plain numbers: the enumerations of pyzmq cost a microsecond for each use.
NOBLOCK, POLLIN, EVENTS, RCVMORE = int(zmq.NOBLOCK), int(zmq.POLLIN), int(zmq.EVENTS), int(zmq.RCVMORE)
MORE = int(zmq.NOBLOCK | zmq.SNDMORE)

BATCH = 128
"""Messages read in one go before other callbacks get their turn."""
COPIED = 16384
"""Frames up to this size are copied out of the socket: cheaper than a reference, and aligned."""
HIGH_WATER = 100_000
HEARTBEAT_INTERVAL = 2000
HEARTBEAT_TIMEOUT = 10_000
CONNECT_SECONDS = 2.0
"""Addresses are given away after their socket was bound: one that refuses for so long belongs to a process that has ended."""
EVENT = struct.Struct("=HI")


class WatchedSocket:
    """A socket with one writer, read by the loop. ``deliver`` gets every message."""

    def __init__(self, socket: "zmq.Socket[bytes]", loop: asyncio.AbstractEventLoop, deliver: Callable[[list[memoryview]], None]) -> None:
        self._socket, self._loop, self._deliver = socket, loop, deliver
        self._outbox: dict[bytes, deque[Frames]] = {}
        self._scheduled = False
        self._descriptor = number_option(socket, zmq.FD)
        loop.add_reader(self._descriptor, self._ready)
        self._schedule()

    @property
    def closed(self) -> bool:
        return self._socket.closed

    def send(self, key: bytes, parts: Frames) -> None:
        """Sends now, or queues behind what ``key`` has waiting. Raises zmq.ZMQError for an unreachable peer."""
        if self._socket.closed:
            return
        if key in self._outbox:
            self._outbox[key].append(parts)
            return
        if not self._try(parts):
            self._outbox[key] = deque([parts])
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
            if self._socket.closed:
                return
            # Whoever wakes this says that something has come; later on, asking costs less than the exception of an empty socket.
            if number and not number_option(self._socket, EVENTS) & POLLIN:
                break
            try:
                frames = receive(self._socket)
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
        if not self._scheduled and not self._socket.closed and number_option(self._socket, EVENTS) & POLLIN:
            self._schedule()

    def drain_all(self) -> None:
        """Delivers everything that has arrived."""
        while not self._socket.closed:
            try:
                frames = receive(self._socket)
            except zmq.ZMQError:
                return
            self._deliver(frames)

    def detach(self) -> None:
        """Stops reading; what arrives stays in the socket."""
        self._loop.remove_reader(self._descriptor)

    def close(self, linger: float) -> None:
        if not self._socket.closed:
            self.detach()
            self._socket.close(linger=int(linger * 1000))


def receive(socket: "zmq.Socket[bytes]") -> list[memoryview]:
    """All frames of one message. Raises zmq.Again when there is none."""
    frames = [memoryview(socket.recv(NOBLOCK))]
    while socket.getsockopt(RCVMORE):
        frame = socket.recv(NOBLOCK, copy=False)
        frames.append(memoryview(frame.bytes) if len(frame) <= COPIED else frame.buffer)
    return frames


def number_option(socket: "zmq.Socket[bytes]", option: int) -> int:
    """A socket option that is a number."""
    value = socket.getsockopt(option)
    assert isinstance(value, int)
    return value


def check_size(frames: Frames) -> None:
    """Raises WireError for a header that the other side would answer by cutting the connection."""
    if len(frames[0]) > MAX_FRAME_BYTES:
        raise WireError(f"a message of {len(frames[0])} bytes, at most {MAX_FRAME_BYTES} travel")


class DealerLink:
    """A caller's connection to one peer, with a monitor that sees it break."""

    def __init__(self, context: "zmq.Context[zmq.Socket[bytes]]", endpoint: str, receiver: Receiver) -> None:
        loop = asyncio.get_running_loop()
        socket = context.socket(zmq.DEALER)
        prepare(socket)
        socket.setsockopt(zmq.RECONNECT_IVL, 20)
        socket.setsockopt(zmq.RECONNECT_IVL_MAX, 500)
        monitor = socket.get_monitor_socket(zmq.EVENT_CONNECTED | zmq.EVENT_CONNECT_RETRIED | zmq.EVENT_DISCONNECTED)
        socket.connect(endpoint)
        self._endpoint = endpoint
        self._receiver = receiver
        self._socket = socket
        self._loop = loop
        self._patience: asyncio.TimerHandle | None = None
        self._watched = WatchedSocket(socket, loop, lambda frames: deliver(frames, receiver.received))
        self._cork = Cork(loop, lambda frames: self._watched.send(b"", frames))
        self._monitor = WatchedSocket(monitor, loop, self._event)

    def send(self, frames: Frames) -> None:
        check_size(frames)
        self._cork.send(frames)

    def _event(self, frames: list[memoryview]) -> None:
        (event, _) = EVENT.unpack(frames[0])
        if event == zmq.EVENT_CONNECTED:
            self._be_patient(None)
        elif event == zmq.EVENT_CONNECT_RETRIED:
            if self._patience is None:
                self._be_patient(self._loop.call_later(CONNECT_SECONDS, self._give_up))
        else:
            self._lose("connection lost")

    def _be_patient(self, timer: asyncio.TimerHandle | None) -> None:
        if self._patience is not None:
            self._patience.cancel()
        self._patience = timer

    def _give_up(self) -> None:
        # The loop may have stalled; what the monitor saw meanwhile counts first.
        self._monitor.drain_all()
        if self._patience is not None:
            self._lose(f"nobody listens at {self._endpoint}")

    def _lose(self, cause: str) -> None:
        if not self._watched.closed:
            self._watched.drain_all()
            self.close()
            self._receiver.lost(cause)

    def close(self, linger: float = 0.0) -> None:
        self._be_patient(None)
        if not self._watched.closed:
            if linger:
                self._cork.flush()
            # The reader leaves the loop first, and is closed last: libzmq's thread sends events under the lock that
            # disable_monitor takes, and a send to a reader that is gone blocks it for ever.
            self._monitor.detach()
            self._socket.disable_monitor()
            self._monitor.close(0)
            self._watched.close(linger)


class RouterLink:
    """A callee's way back to one caller."""

    def __init__(self, transport: "ZeroMQTransport", identity: bytes) -> None:
        self._transport, self._identity = transport, identity
        self._cork = Cork(asyncio.get_running_loop(), lambda frames: transport.send_to(identity, frames))

    def send(self, frames: Frames) -> None:
        check_size(frames)
        self._cork.send(frames)

    def close(self, linger: float = 0.0) -> None:
        self._cork.flush()
        self._transport.forget(self._identity)


class ZeroMQTransport:
    """ipc and tcp. Must be built on a running loop."""

    def __init__(self, endpoint: str) -> None:
        self._loop = asyncio.get_running_loop()
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._router = self._context.socket(zmq.ROUTER)
        prepare(self._router)
        self._router.setsockopt(zmq.ROUTER_MANDATORY, 1)
        try:
            self._router.bind(endpoint)
        except zmq.ZMQError:
            self._context.destroy(linger=0)
            raise
        bound: bytes = self._router.getsockopt(zmq.LAST_ENDPOINT)  # type: ignore[assignment]
        self.endpoint = bound.rstrip(b"\0").decode()
        self._links: dict[bytes, Receiver] = {}
        self._dealers: list[DealerLink] = []
        self._accept: Callable[[Link], Receiver] | None = None
        self._incoming: WatchedSocket | None = None

    def listen(self, accept: Callable[[Link], Receiver]) -> None:
        self._accept = accept
        self._incoming = WatchedSocket(self._router, self._loop, self._deliver)

    def _deliver(self, frames: list[memoryview]) -> None:
        identity = bytes(frames[0])
        receiver = self._links.get(identity)
        if receiver is None and self._accept is not None:
            receiver = self._links[identity] = self._accept(RouterLink(self, identity))
        if receiver is not None:
            deliver(frames[1:], receiver.received)

    def send_to(self, identity: bytes, frames: Frames) -> None:
        """Answers a caller; one that is gone is reported to its receiver."""
        if self._incoming is None:
            return
        try:
            self._incoming.send(identity, [identity, *frames])
        except zmq.ZMQError as error:
            receiver = self._links.pop(identity, None)
            if receiver is not None:
                self._loop.call_soon(receiver.lost, f"the caller is gone ({error})")

    def forget(self, identity: bytes) -> None:
        """Drops a caller; a later message from it is a new link."""
        self._links.pop(identity, None)

    def connect(self, endpoint: str, receiver: Receiver) -> Link:
        self._dealers = [dealer for dealer in self._dealers if not dealer._watched.closed]
        link = DealerLink(self._context, endpoint, receiver)
        self._dealers.append(link)
        return link

    async def close(self) -> None:
        for dealer in self._dealers:
            dealer.close()
        if self._incoming is not None:
            self._incoming.close(0.2)
        self._router.close(linger=200)
        self._links.clear()
        # Bounded by the linger above.
        self._context.term()


def prepare(socket: "zmq.Socket[bytes]") -> None:
    """Options that every socket shares."""
    for option, value in (
        (zmq.LINGER, 200),
        (zmq.SNDHWM, HIGH_WATER),
        (zmq.RCVHWM, HIGH_WATER),
        (zmq.MAXMSGSIZE, MAX_FRAME_BYTES),
        (zmq.HANDSHAKE_IVL, 10_000),
        (zmq.HEARTBEAT_IVL, HEARTBEAT_INTERVAL),
        (zmq.HEARTBEAT_TIMEOUT, HEARTBEAT_TIMEOUT),
    ):
        socket.setsockopt(option, value)
