"""What libzmq's monitor says about handshakes: whether a connection stands, and why one does not."""

import struct

import zmq

from asyncrl.runtime.curve import KEY_DIFFERS

EVENT = struct.Struct("=HI")
"""First frame of an event: its number and its value."""

CONNECTED, RETRIED, DISCONNECTED = int(zmq.EVENT_CONNECTED), int(zmq.EVENT_CONNECT_RETRIED), int(zmq.EVENT_DISCONNECTED)
SUCCEEDED = int(zmq.EVENT_HANDSHAKE_SUCCEEDED)
BROKEN_OFF = int(zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL)
PROTOCOL = int(zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL)
UNKNOWN_KEY = int(zmq.EVENT_HANDSHAKE_FAILED_AUTH)

CALLER_EVENTS = CONNECTED | RETRIED | DISCONNECTED | SUCCEEDED | BROKEN_OFF | PROTOCOL | UNKNOWN_KEY
CALLEE_EVENTS = BROKEN_OFF | PROTOCOL
"""A key that is not known is counted where the question is answered, which knows the caller's address."""

CRYPTOGRAPHIC, MECHANISM_MISMATCH = 0x11000001, 0x11000002
"""ZMQ_PROTOCOL_ERROR_ZMTP_CRYPTOGRAPHIC and ..._MECHANISM_MISMATCH of zmq.h."""

MOST_BROKEN_OFF = 3
"""A process that ends breaks off a handshake too, but it does not come back to break off the next ones."""
MOST_DOORS = 4096
AT_ONCE = 1.0
"""Seconds within which a handshake is broken off on purpose; later it has run out of time, as when the other event loop stands still."""


class OpenDoors:
    """The endpoints, the latest of many, where this process was let in without a key."""

    def __init__(self) -> None:
        self._endpoints: dict[str, None] = {}

    def add(self, endpoint: str) -> None:
        """One more."""
        self._endpoints[endpoint] = None
        if len(self._endpoints) > MOST_DOORS:
            del self._endpoints[next(iter(self._endpoints))]

    def __contains__(self, endpoint: str) -> bool:
        return endpoint in self._endpoints


class CallerHandshake:
    """The handshake of one connection as its caller sees it.

    ``role`` is its key's, "" without keys; ``doors`` are those that this process has found open.
    """

    def __init__(self, endpoint: str, role: str, doors: OpenDoors | None = None) -> None:
        self._endpoint, self._role, self._doors = endpoint, role, doors or OpenDoors()
        self._hung_up = False
        self._broken_off = 0
        self._connected = 0.0
        self.stands = False
        self.state = f"no connection to {endpoint}"
        """What is known of the connection, in words."""

    def heard(self, event: int, value: int, now: float) -> str:
        """Takes in an event that was read at ``now``; returns why the connection can never stand, "" while it may."""
        if event == CONNECTED:
            self._connected = now
            self.state = f"connected to {self._endpoint}, no answer to the handshake"
        elif event == SUCCEEDED:
            self.stands = True
            if not self._role:
                self._doors.add(self._endpoint)
            self.state = f"connected to {self._endpoint}, no answer to the hello"
        elif event == UNKNOWN_KEY:
            return f"{KEY_DIFFERS}: {self._endpoint} knows no key of a caller with role {self._role}"
        elif event == PROTOCOL:
            return self._mismatch(value)
        elif event == BROKEN_OFF:
            self._broken_off += now - self._connected < AT_ONCE
            self.state = f"{self._endpoint} broke off the handshake"
            if self._broken_off >= MOST_BROKEN_OFF:
                # Who has let this process in without a key asks for none now: what lies between them hangs up.
                self._hung_up = not self._role and self._endpoint in self._doors
                return "" if self._hung_up else self._mismatch(MECHANISM_MISMATCH)
        return ""

    def lost_by(self, event: int) -> str:
        """Why the connection is lost after ``event``, though another one may stand; "" while it is not."""
        if self._hung_up:
            return f"{self._endpoint} hangs up"
        return "connection lost" if event == DISCONNECTED and self.stands else ""

    def _mismatch(self, value: int) -> str:
        if not self._endpoint.startswith("tcp:") or value not in (CRYPTOGRAPHIC, MECHANISM_MISMATCH):
            return f"{self._endpoint} breaks off the handshake; it is no process of this runtime (protocol error 0x{value:08x})"
        if self._role:
            return f"{KEY_DIFFERS}: {self._endpoint} has another key, or none"
        return f"{KEY_DIFFERS}: this process has none, {self._endpoint} asks for one"


def callee_refusal(event: int, value: int, endpoint: str, role: str) -> str:
    """What a process that listens at ``endpoint`` says about a handshake that failed. ``role`` is its key's, "" without keys."""
    if event == PROTOCOL and value == CRYPTOGRAPHIC:
        return f"{KEY_DIFFERS}: a caller expects another key of role {role}"
    if event == PROTOCOL and value == MECHANISM_MISMATCH:
        return f"{KEY_DIFFERS}: a caller has none" if role else f"{KEY_DIFFERS}: a caller has one, this process has none"
    if event == PROTOCOL:
        return f"a caller does not speak the protocol (error 0x{value:08x})"
    # Where only one of the two has a key both see it, and the first to see it hangs up.
    key = f"{KEY_DIFFERS}, or " if endpoint.startswith("tcp:") else ""
    return f"a caller broke off the handshake: {key}it was silent too long, or is no process of this runtime"
