"""Links over ZeroMQ: one ROUTER for what comes in, one DEALER for each peer that is called.

Sockets are read through their file descriptor on the event loop. That descriptor is edge-triggered and speaks of the
socket's mailbox, not of messages: every callback drains to EAGAIN, and every send looks at EVENTS again.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable

import zmq

from asyncrl.errors import WireError
from asyncrl.runtime.codec import MAX_FRAME_BYTES
from asyncrl.runtime.cork import Cork, deliver
from asyncrl.runtime.curve import Keyring
from asyncrl.runtime.handshake import (
    CALLEE_EVENTS,
    CALLER_EVENTS,
    CONNECTED,
    DISCONNECTED,
    EVENT,
    RETRIED,
    SUCCEEDED,
    CallerHandshake,
    callee_refusal,
)
from asyncrl.runtime.liveness import Liveness
from asyncrl.runtime.sockets import HANDSHAKE_SECONDS, Sockets
from asyncrl.runtime.transport import CallingReceiver, Frames, Link, Receiver
from asyncrl.runtime.zap import Doorkeeper

logger = logging.getLogger(__name__)

# Plain numbers: the enumerations of pyzmq cost a microsecond for each use.
NOBLOCK, POLLIN, EVENTS = int(zmq.NOBLOCK), int(zmq.POLLIN), int(zmq.EVENTS)
MORE = int(zmq.NOBLOCK | zmq.SNDMORE)

BATCH = 128
"""Messages read in one go before other callbacks get their turn."""
COPIED = 16384
"""Frames up to this size are copied out of the socket: cheaper than a reference, and aligned."""
CONNECT_SECONDS = 2.0
"""Addresses are given away after their socket was bound: one that refuses for so long belongs to a process that has ended."""


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
            if self._socket.closed:
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
        if not self._scheduled and not self._socket.closed and number_option(self._socket, EVENTS) & POLLIN:
            self._schedule()

    def drain_all(self) -> None:
        """Delivers everything that has arrived."""
        while not self._socket.closed:
            try:
                frames = self._read(self._socket)
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


def check_size(frames: Frames) -> None:
    """Raises WireError for a header that the other side would answer by cutting the connection."""
    if len(frames[0]) > MAX_FRAME_BYTES:
        raise WireError(f"a message of {len(frames[0])} bytes, at most {MAX_FRAME_BYTES} travel")


class DealerLink:
    """A caller's connection to one peer, with a monitor that sees it break."""

    role = ""
    tells = True

    def __init__(self, sockets: Sockets, endpoint: str, receiver: CallingReceiver, role: str) -> None:
        loop = asyncio.get_running_loop()
        socket = sockets.dealer(endpoint, role)
        monitor = sockets.monitor(socket, CALLER_EVENTS)
        socket.connect(endpoint)
        self._handshake = CallerHandshake(endpoint, sockets.role_at(endpoint), sockets.open_doors)
        self._sockets, self._endpoint = sockets, endpoint
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
        event, value = EVENT.unpack(frames[0])
        if refusal := self._handshake.heard(event, value, self._loop.time()):
            self.close()
            self._receiver.refused(refusal)
        elif event == CONNECTED:
            self._be_patient(None)
        elif event == RETRIED:
            if self._patience is None:
                self._be_patient(self._loop.call_later(CONNECT_SECONDS, self._give_up))
        elif cause := self._handshake.lost_by(event):
            self._lose(cause)
        elif event == SUCCEEDED and self._sockets.role_at(self._endpoint):
            self._settle()

    def _settle(self) -> None:
        """Once the handshake is over, only the end of the connection is watched for.

        libzmq 4.3.5 loses the error number of a message that it cannot decipher while it tells a monitor of it. It then takes the
        connection for one whose queue is full, and its heartbeat aborts the process when the peer leaves.
        """
        before = self._monitor
        before.detach()
        self._monitor = WatchedSocket(self._sockets.monitor(self._socket, DISCONNECTED), self._loop, self._event)
        # What happened until then.
        before.drain_all()
        before.close(0)

    @property
    def state(self) -> str:
        return self._handshake.state

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
        # What was read may have ended it.
        if not self._watched.closed:
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

    state = "accepted"
    tells = False

    def __init__(self, transport: "ZeroMQTransport", identity: bytes, role: str) -> None:
        self._transport, self._identity, self.role = transport, identity, role
        self._cork = Cork(asyncio.get_running_loop(), lambda frames: transport.send_to(identity, frames))

    def send(self, frames: Frames) -> None:
        check_size(frames)
        self._cork.send(frames)

    def close(self, linger: float = 0.0) -> None:
        self._cork.flush()
        self._transport.forget(self._identity)


class ZeroMQTransport:
    """ipc and tcp. Must be built on a running loop. ``on_refusal`` is told of the callers whose handshake fails."""

    def __init__(
        self,
        endpoint: str,
        keys: Keyring | None = None,
        liveness: Liveness | None = None,
        handshake_seconds: float = HANDSHAKE_SECONDS,
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._sockets = Sockets(keys, liveness or Liveness(), handshake_seconds)
        self._role = self._sockets.role_at(endpoint)
        self._router = self._sockets.router()
        monitor = self._sockets.monitor(self._router, CALLEE_EVENTS)
        door = self._sockets.door() if self._role else None
        try:
            self.endpoint = self._sockets.bind(self._router, endpoint)
        except BaseException:
            self._router.disable_monitor()
            self._sockets.context.destroy(linger=0)
            raise
        self.on_refusal: Callable[[str], None] = lambda reason: logger.warning("%s refuses a stranger: %s", endpoint, reason)
        self._links: dict[bytes, Receiver] = {}
        self._roles: dict[bytes, str] = {}
        self._dealers: list[DealerLink] = []
        self._accept: Callable[[Link], Receiver] | None = None
        self._incoming: WatchedSocket | None = None
        self._door: WatchedSocket | None = None
        if door is not None and keys is not None:
            keeper = Doorkeeper(keys, lambda reason: self.on_refusal(reason))
            asked = WatchedSocket(door, self._loop, lambda question: asked.send(b"", keeper.answer(question)))
            self._door = asked
        self._monitor = WatchedSocket(monitor, self._loop, self._failed)

    def listen(self, accept: Callable[[Link], Receiver]) -> None:
        self._accept = accept
        if self._role:
            self._incoming = WatchedSocket(self._router, self._loop, self._deliver_sealed, receive_with_role)
        else:
            self._incoming = WatchedSocket(self._router, self._loop, self._deliver)

    def _failed(self, frames: list[memoryview]) -> None:
        event, value = EVENT.unpack(frames[0])
        self.on_refusal(callee_refusal(event, value, self.endpoint, self._role))

    def _deliver_sealed(self, frames: list[memoryview]) -> None:
        role, identity = str(frames[0], "utf-8"), bytes(frames[1])
        if self._roles.setdefault(identity, role) != role:
            # A caller may choose its routing id, also one that belonged to somebody who is gone.
            receiver = self._links.pop(identity, None)
            if receiver is not None:
                receiver.lost("a caller of another role has taken its place")
            self._roles[identity] = role
        self._deliver(frames[1:], role)

    def _deliver(self, frames: list[memoryview], role: str = "") -> None:
        identity = bytes(frames[0])
        receiver = self._links.get(identity)
        if receiver is None and self._accept is not None:
            receiver = self._links[identity] = self._accept(RouterLink(self, identity, role))
        if receiver is not None:
            deliver(frames[1:], receiver.received)

    def send_to(self, identity: bytes, frames: Frames) -> None:
        """Answers a caller; one that is gone is reported to its receiver."""
        if self._incoming is None:
            return
        try:
            self._incoming.send(identity, [identity, *frames])
        except zmq.ZMQError as error:
            receiver = self._links.get(identity)
            self.forget(identity)
            if receiver is not None:
                self._loop.call_soon(receiver.lost, f"the caller is gone ({error})")

    def forget(self, identity: bytes) -> None:
        """Drops a caller; a later message from it is a new link."""
        self._links.pop(identity, None)
        self._roles.pop(identity, None)

    def connect(self, endpoint: str, receiver: CallingReceiver, role: str = "") -> Link:
        self._dealers = [dealer for dealer in self._dealers if not dealer._watched.closed]
        link = DealerLink(self._sockets, endpoint, receiver, role)
        self._dealers.append(link)
        return link

    async def close(self) -> None:
        for dealer in self._dealers:
            dealer.close()
        if self._incoming is not None:
            self._incoming.detach()
        self._monitor.detach()
        self._router.disable_monitor()
        self._monitor.close(0)
        self._router.close(linger=200)
        if self._door is not None:
            self._door.close(0)
        self._links.clear()
        self._roles.clear()
        # Bounded by the linger above.
        self._sockets.context.term()
