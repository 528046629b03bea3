"""What a supervisor, its client and its children tell one another, and how it is framed on a byte stream."""

import struct
from typing import Self, TypeVar

import msgspec

from asyncrl.errors import WireError
from asyncrl.runtime.curve import Keyring
from asyncrl.runtime.liveness import Liveness
from asyncrl.runtime.messages import ActorAddress
from asyncrl.runtime.restarts import Ending
from asyncrl.runtime.watching import Watching

T = TypeVar("T")

LENGTH = struct.Struct("<I")
LONGEST_ORDER = 16 << 20
"""Bytes of an order to a supervisor, most of which are the arguments of a child."""
LONGEST_REPORT = 64 << 20
"""Bytes of what a supervisor says. A report repeats names and causes of orders, at most three, and adds last lines."""


class ProcessSpec(msgspec.Struct, forbid_unknown_fields=True):
    """A child to start: ``name`` (process and log file), ``actor`` ("module:Class"), its encoded constructor
    ``arguments``, additions to its environment, the actor's own name ("" = the process's), seconds until it must be ready.

    Once it has been ready, it is started again when it ends unasked, at most ``restarts`` times within ``restart_window`` seconds.
    """

    name: str
    actor: str
    arguments: bytes
    environment: dict[str, str]
    actor_name: str = ""
    ready_within: float = 30.0
    restarts: int = 0
    restart_window: float = 60.0
    role: str = "worker"


class ProcessDeath(msgspec.Struct, forbid_unknown_fields=True):
    """A process that ended unasked: how ("signal 9 (SIGKILL)", "exit code 1"), and what it printed last.

    ``restarting`` tells whether another life follows, ``restarts`` how many did within the window before this end;
    ``first`` is the first end of the window where this is not it.
    """

    name: str
    pid: int
    exit: str
    last_lines: list[str]
    generation: int = 0
    restarting: bool = False
    restarts: int = 0
    first: Ending | None = None

    @property
    def cause(self) -> str:
        """Why the process is gone: how it ended, or how it ended first and that restarts did not help."""
        if self.restarting or self.first is None:
            return self.exit
        return f"{self.first.exit} (restarts that did not help: {self.restarts}; the last life: {self.exit})"

    @property
    def cause_lines(self) -> list[str]:
        """The last output of the life that ``cause`` begins with."""
        return self.last_lines if self.restarting or self.first is None else self.first.last_lines


class Settings(msgspec.Struct, forbid_unknown_fields=True):
    """What a supervisor is started with.

    ``interface`` is the address that its children bind to, "" for ipc sockets; ``ports`` a range of its ports, "" for any.
    ``temporary_logs`` says that ``log_folder`` goes with the client: who is left last removes it.
    """

    parent: int
    folder: str
    log_folder: str
    env_allow: list[str]
    interface: str = ""
    ports: str = ""
    watching: Watching = Watching()
    temporary_logs: bool = False


class Membership(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What makes a process a member of a job. ``directory`` tells it where the others are, None where there is none.

    ``keys`` are a child's own; those of the whole job never leave the process that holds them. ``shared_memory`` is the most bytes
    of it that a child has.
    """

    attempt: str
    token: bytes
    directory: ActorAddress | None = None
    liveness: Liveness = Liveness()
    keys: Keyring | None = None
    shared_memory: int = 0

    def of_role(self, role: str) -> Self:
        """The membership of a child. Raises ConfigError for a role that the job's keys do not have."""
        return self if self.keys is None else msgspec.structs.replace(self, keys=self.keys.for_role(role))


class Birth(msgspec.Struct, forbid_unknown_fields=True):
    """What a child is started with."""

    spec: ProcessSpec
    endpoint: str
    generation: int
    member: Membership
    watching: Watching = Watching()


class Spawn(msgspec.Struct, tag="spawn", forbid_unknown_fields=True):
    """Client to supervisor: start a child."""

    spec: ProcessSpec
    member: Membership


class StopChild(msgspec.Struct, tag="stop_child", forbid_unknown_fields=True):
    """Client to supervisor: end one child for good, killing after ``grace`` seconds."""

    name: str
    grace: float


class Replace(msgspec.Struct, tag="replace", forbid_unknown_fields=True):
    """Client to supervisor: kill this life of a child, which does not answer, and let the next begin."""

    name: str
    generation: int
    cause: str


class Stop(msgspec.Struct, tag="stop", forbid_unknown_fields=True):
    """Client to supervisor: end everything, killing after ``grace`` seconds."""

    grace: float


class Started(msgspec.Struct, tag="started", forbid_unknown_fields=True):
    """Supervisor to client: a life of the child begins. Should the supervisor end, the client ends its group."""

    name: str
    pid: int


class Ready(msgspec.Struct, tag="ready", forbid_unknown_fields=True):
    """Supervisor to client: the child serves at ``address``; for the first time."""

    name: str
    pid: int
    address: ActorAddress


class NotReady(msgspec.Struct, tag="not_ready", forbid_unknown_fields=True):
    """Supervisor to client: the child did not come up. ``pid`` is the process that has ended, 0 where none has."""

    name: str
    cause: str
    last_lines: list[str]
    pid: int = 0


class Died(msgspec.Struct, tag="died", forbid_unknown_fields=True):
    """Supervisor to client: a child that was ready has ended, or has not come up again."""

    death: ProcessDeath


class Restarted(msgspec.Struct, tag="restarted", forbid_unknown_fields=True):
    """Supervisor to client: the child serves again, at ``address``."""

    name: str
    pid: int
    address: ActorAddress


class Stopped(msgspec.Struct, tag="stopped", forbid_unknown_fields=True):
    """Supervisor to client: the child that was to stop has ended; ``exit`` says how, "" where there is no such child."""

    name: str
    generation: int
    exit: str


ToSupervisor = Spawn | StopChild | Replace | Stop
ToClient = Started | Ready | NotReady | Died | Restarted | Stopped

ENCODER = msgspec.msgpack.Encoder()
_ORDERS: msgspec.msgpack.Decoder[ToSupervisor] = msgspec.msgpack.Decoder(ToSupervisor)
_REPORTS: msgspec.msgpack.Decoder[ToClient] = msgspec.msgpack.Decoder(ToClient)
_ADDRESSES: msgspec.msgpack.Decoder[ActorAddress] = msgspec.msgpack.Decoder(ActorAddress)


def framed(message: msgspec.Struct, longest: int = LONGEST_ORDER) -> bytes:
    """The message behind its length. Raises WireError for one of more than ``longest`` bytes, which would end who reads it."""
    data = ENCODER.encode(message)
    if len(data) > longest:
        raise WireError(f"a {type(message).__name__} of {len(data)} bytes, at most {longest} travel")
    return LENGTH.pack(len(data)) + data


class FrameReader:
    """Cuts a byte stream into messages of at most ``longest`` bytes."""

    def __init__(self, longest: int = LONGEST_ORDER) -> None:
        self._longest = longest
        self._buffer = bytearray()

    def feed(self, data: bytes) -> list[bytes]:
        """The messages that ``data`` completes. Raises WireError for a length that cannot be."""
        self._buffer += data
        found: list[bytes] = []
        while len(self._buffer) >= LENGTH.size:
            (size,) = LENGTH.unpack_from(self._buffer)
            if size > self._longest:
                raise WireError(f"a control message of {size} bytes")
            if len(self._buffer) < LENGTH.size + size:
                break
            found.append(bytes(self._buffer[LENGTH.size : LENGTH.size + size]))
            del self._buffer[: LENGTH.size + size]
        return found


def order_in(frame: bytes) -> ToSupervisor:
    """What a client says. Raises WireError."""
    return _read(_ORDERS, frame)


def report_in(frame: bytes) -> ToClient:
    """What a supervisor says. Raises WireError."""
    return _read(_REPORTS, frame)


def address_in(frame: bytes) -> ActorAddress:
    """What a child says once it serves. Raises WireError."""
    return _read(_ADDRESSES, frame)


def _read(decoder: msgspec.msgpack.Decoder[T], frame: bytes) -> T:
    try:
        return decoder.decode(frame)
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        raise WireError(str(error)) from error
