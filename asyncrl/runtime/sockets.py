"""How the sockets of one process are made: their options, their keys, and the monitors that tell of their connections."""

import errno
import itertools

import zmq

from asyncrl.errors import ConfigError, Undeliverable
from asyncrl.runtime.codec import MAX_FRAME_BYTES
from asyncrl.runtime.curve import Keyring
from asyncrl.runtime.endpoints import check_endpoint, ports_of
from asyncrl.runtime.handshake import OpenDoors
from asyncrl.runtime.liveness import Liveness
from asyncrl.runtime.port_holder import holder_of
from asyncrl.runtime.zap import ZAP_DOMAIN, ZAP_ENDPOINT

HIGH_WATER = 100_000
UNREAD = 256
"""Messages of one connection that may wait here to be read, whatever their size; behind them the network holds the sender back."""
LONGEST_TTL = 6_553_500
"""Milliseconds of silence that a heartbeat can name."""
HANDSHAKE_SECONDS = 10.0
"""How long a handshake may take; a silent stranger is dropped after it."""
SEALED_BYTES = 64
"""What CURVE adds to a frame, at most."""
BACKLOG = 1024
"""Connections that the kernel holds until they are accepted: a crowd of strangers must not keep a caller out."""


class Sockets:
    """The sockets of one transport. On tcp they are sealed by CURVE when there are keys; an ipc socket's folder is its door."""

    def __init__(self, keys: Keyring | None, liveness: Liveness, handshake_seconds: float) -> None:
        self.keys = keys
        self._handshake_seconds, self._liveness = handshake_seconds, liveness
        self.context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._monitors = itertools.count()
        self.open_doors = OpenDoors()

    def role_at(self, endpoint: str) -> str:
        """The role that this process's key proves to who meets it at ``endpoint``, "" where connections are not sealed."""
        return self.keys.role if self.keys is not None and endpoint.startswith("tcp://") else ""

    def router(self) -> "zmq.Socket[bytes]":
        """The socket that others call; not bound yet."""
        socket = self._socket(zmq.ROUTER)
        # No heartbeats of its own: libzmq 4.3.5 aborts the process when its timer for them runs out on a connection whose queue
        # here was full when the peer left. A caller's say after which silence the connection ends.
        socket.setsockopt(zmq.RCVHWM, UNREAD)
        socket.setsockopt(zmq.ROUTER_MANDATORY, 1)
        socket.setsockopt(zmq.BACKLOG, BACKLOG)
        return socket

    def bind(self, router: "zmq.Socket[bytes]", endpoint: str) -> str:
        """Binds, to the first free port of a range; returns the endpoint as bound.

        Raises ConfigError for an endpoint that is not allowed or is taken, naming the holder, zmq.ZMQError when it cannot be bound.
        """
        check_endpoint(endpoint, self.keys is not None)
        router.setsockopt(zmq.IPV6, int("[" in endpoint))
        if self.role_at(endpoint):
            assert self.keys is not None
            router.setsockopt(zmq.CURVE_SERVER, 1)
            router.setsockopt(zmq.CURVE_SECRETKEY, self.keys.secret)
            router.setsockopt(zmq.ZAP_DOMAIN, ZAP_DOMAIN)
            router.setsockopt(zmq.ZAP_ENFORCE_DOMAIN, 1)
        candidates = list(ports_of(endpoint))
        for candidate in candidates:
            try:
                router.bind(candidate)
            except zmq.ZMQError as error:
                if error.errno != errno.EADDRINUSE or not candidate.startswith("tcp://"):
                    raise
            else:
                bound: bytes = router.getsockopt(zmq.LAST_ENDPOINT)  # type: ignore[assignment]
                return bound.rstrip(b"\0").decode()
        port = int(candidates[0].rpartition(":")[2])
        taken = f"port {port} is {holder_of(port)}"
        if len(candidates) > 1:
            raise ConfigError("endpoint", endpoint, f"every port of this range is taken, {taken}; allowed: a range with a free port")
        raise ConfigError("endpoint", endpoint, f"{taken}; allowed: a free port, or * for any")

    def dealer(self, endpoint: str, role: str) -> "zmq.Socket[bytes]":
        """The socket that calls a process of ``role`` at ``endpoint``; not connected yet.

        Raises Undeliverable when this process knows no key of that role.
        """
        socket = self._socket(zmq.DEALER)
        # Never full, as it has a heartbeat: what a callee may send is bounded by the credit that it was given.
        socket.setsockopt(zmq.RCVHWM, 0)
        socket.setsockopt(zmq.HEARTBEAT_IVL, int(self._liveness.heartbeat * 1000))
        # It runs from a heartbeat that is sent, and not from the last sign of life.
        socket.setsockopt(zmq.HEARTBEAT_TIMEOUT, int((self._liveness.dead_after - self._liveness.heartbeat) * 1000))
        socket.setsockopt(zmq.HEARTBEAT_TTL, min(LONGEST_TTL, int(self._liveness.dead_after * 1000)))
        # An IPv4 address would show as ::ffff:127.0.0.1 everywhere.
        socket.setsockopt(zmq.IPV6, int("[" in endpoint))
        socket.setsockopt(zmq.RECONNECT_IVL, 20)
        socket.setsockopt(zmq.RECONNECT_IVL_MAX, 500)
        if not self.role_at(endpoint):
            return socket
        assert self.keys is not None
        server = self.keys.servers.get(role)
        if server is None:
            socket.close(linger=0)
            may = ", ".join(self.keys.servers) or "nobody"
            raise Undeliverable(endpoint, f"role {self.keys.role!r} has no key of role {role!r}; it may call {may}")
        socket.setsockopt(zmq.CURVE_SERVERKEY, server)
        socket.setsockopt(zmq.CURVE_SECRETKEY, self.keys.secret)
        socket.setsockopt(zmq.CURVE_PUBLICKEY, self.keys.public)
        return socket

    def door(self) -> "zmq.Socket[bytes]":
        """Where libzmq asks whether a caller may come in."""
        socket = self.context.socket(zmq.REP)
        socket.bind(ZAP_ENDPOINT)
        return socket

    def monitor(self, socket: "zmq.Socket[bytes]", events: int) -> "zmq.Socket[bytes]":
        """A socket with the events of another one. Before that one is closed its monitor must be disabled."""
        address = f"inproc://monitor-{next(self._monitors)}"
        socket.monitor(address, events)
        reader = self.context.socket(zmq.PAIR)
        # libzmq's thread waits where a monitor is full, and with it every connection of the process.
        reader.setsockopt(zmq.RCVHWM, HIGH_WATER)
        reader.connect(address)
        return reader

    def _socket(self, kind: int) -> "zmq.Socket[bytes]":
        socket = self.context.socket(kind)
        for option, value in (
            (zmq.LINGER, 200),
            (zmq.SNDHWM, HIGH_WATER),
            (zmq.MAXMSGSIZE, MAX_FRAME_BYTES + SEALED_BYTES),
            (zmq.HANDSHAKE_IVL, int(self._handshake_seconds * 1000)),
        ):
            socket.setsockopt(option, value)
        return socket
