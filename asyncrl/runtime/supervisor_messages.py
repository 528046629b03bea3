"""What a supervisor, its client and its children tell one another, and how it is framed on a byte stream."""

import struct
from typing import TypeVar

import msgspec

from asyncrl.errors import WireError
from asyncrl.runtime.messages import ActorAddress

T = TypeVar("T")

LENGTH = struct.Struct("<I")
LONGEST = 256 << 20


class ProcessSpec(msgspec.Struct, forbid_unknown_fields=True):
    """A child to start: ``name`` (process and log file), ``actor`` ("module:Class"), its encoded constructor
    ``arguments``, additions to its environment, the actor's own name ("" = the process's), seconds until it must be ready."""

    name: str
    actor: str
    arguments: bytes
    environment: dict[str, str]
    actor_name: str = ""
    ready_within: float = 30.0


class ProcessDeath(msgspec.Struct, forbid_unknown_fields=True):
    """A process that ended unasked: how ("signal 9 (SIGKILL)", "exit code 1"), and what it printed last."""

    name: str
    pid: int
    exit: str
    last_lines: list[str]


class Settings(msgspec.Struct, forbid_unknown_fields=True):
    """What a supervisor is started with. ``interface`` is the address that its children bind to, "" for ipc sockets."""

    parent: int
    folder: str
    log_folder: str
    env_allow: list[str]
    interface: str = ""


class Birth(msgspec.Struct, forbid_unknown_fields=True):
    """What a child is started with."""

    spec: ProcessSpec
    endpoint: str
    attempt: str
    generation: int
    token: bytes


class Spawn(msgspec.Struct, tag="spawn", forbid_unknown_fields=True):
    """Client to supervisor: start a child with this attempt and token."""

    spec: ProcessSpec
    attempt: str
    token: bytes


class Stop(msgspec.Struct, tag="stop", forbid_unknown_fields=True):
    """Client to supervisor: end everything, killing after ``grace`` seconds."""

    grace: float


class Ready(msgspec.Struct, tag="ready", forbid_unknown_fields=True):
    """Supervisor to client: the child serves at ``address``."""

    name: str
    pid: int
    address: ActorAddress


class NotReady(msgspec.Struct, tag="not_ready", forbid_unknown_fields=True):
    """Supervisor to client: the child did not come up."""

    name: str
    cause: str
    last_lines: list[str]


class Died(msgspec.Struct, tag="died", forbid_unknown_fields=True):
    """Supervisor to client: a child that was ready has ended."""

    death: ProcessDeath


TO_SUPERVISOR = Spawn | Stop
TO_CLIENT = Ready | NotReady | Died

ENCODER = msgspec.msgpack.Encoder()


def framed(message: msgspec.Struct) -> bytes:
    """The message behind its length."""
    data = ENCODER.encode(message)
    return LENGTH.pack(len(data)) + data


class FrameReader:
    """Cuts a byte stream into messages."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> list[bytes]:
        """The messages that ``data`` completes. Raises WireError for a length that cannot be."""
        self._buffer += data
        found: list[bytes] = []
        while len(self._buffer) >= LENGTH.size:
            (size,) = LENGTH.unpack_from(self._buffer)
            if size > LONGEST:
                raise WireError(f"a control message of {size} bytes")
            if len(self._buffer) < LENGTH.size + size:
                break
            found.append(bytes(self._buffer[LENGTH.size : LENGTH.size + size]))
            del self._buffer[: LENGTH.size + size]
        return found
