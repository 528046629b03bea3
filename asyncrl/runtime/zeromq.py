"""Links over ZeroMQ: one ROUTER for what comes in, one DEALER for each peer that is called."""

import asyncio
import logging
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
from asyncrl.runtime.watched_socket import WatchedSocket, receive_with_role
from asyncrl.runtime.zap import Doorkeeper

logger = logging.getLogger(__name__)

CONNECT_SECONDS = 2.0
"""Addresses are given away after their socket was bound: one that refuses for so long belongs to a process that has ended."""


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
        if self._monitor.closed:
            return  # in a copy of the process these are its parent's
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
