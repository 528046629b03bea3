"""What travels between two processes: tagged MessagePack structs, unknown fields refused.

A message is one header frame (one of the structs below) and any number of buffer frames that its arguments, result or
item refer to by index. ``Raw`` fields hold MessagePack that only the endpoint's own types can read.
"""

import hashlib
from typing import Annotated, Any, Literal, get_args, get_origin

import msgspec

from asyncrl.errors import WireError
from asyncrl.runtime.sharing_messages import SHARING

VERSION = "0.1.0"

LONGEST_NAME = 256
"""Characters of a name that travels."""

Name = Annotated[str, msgspec.Meta(max_length=LONGEST_NAME)]
Text = Annotated[str, msgspec.Meta(max_length=65536)]
Identifier = Annotated[int, msgspec.Meta(ge=0)]
Seconds = Annotated[float, msgspec.Meta(ge=0)]


class ActorAddress(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Where one actor lives; may travel in messages.

    ``endpoint`` is "ipc://...", "tcp://..." or "memory://..."; ``attempt`` and ``generation`` name the incarnation. ``role`` is
    that of the process: with keys it says whose public key the caller must find there. It stands in the address, and is no
    function of the process name, because names are the user's; a false one only makes the handshake fail. A process that was
    started by hand, by ``ActorSystem.bind``, is of attempt "" and generation 0 unless it says otherwise.
    """

    process: Name
    endpoint: Name
    actor: Name
    attempt: Name = ""
    generation: int = 0
    role: Name = ""


class Message(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """Root of the envelopes."""


class Hello(Message, tag="hello", frozen=True):
    """First message of a caller: who it is, and whom it believes to reach."""

    version: Name
    schema: Name
    process: Name
    attempt: Name
    generation: int
    token: bytes
    target: Name
    target_generation: int
    role: Name = ""


class Call(Message, tag="call", frozen=True):
    """One request. ``deadline`` and ``silence`` are seconds from now, 0 for none; ``sequence`` is -1 outside collectives.

    ``operation`` is the same number in every repetition of one idempotent call, 0 for a call that is never repeated.
    """

    id: Identifier
    actor: Name
    method: Name
    mode: Literal["call", "tell", "stream"]
    deadline: Seconds
    silence: Seconds
    credit: Identifier
    sequence: int
    operation: Identifier
    trace: Name
    arguments: msgspec.Raw


class Cancel(Message, tag="cancel", frozen=True):
    """The caller has left; the callee stops at its next await."""

    id: Identifier


class Credit(Message, tag="credit", frozen=True):
    """The consumer of a stream allows ``items`` more."""

    id: Identifier
    items: Identifier


class Goodbye(Message, tag="goodbye", frozen=True):
    """The sender leaves on purpose; nothing follows."""

    reason: Text


class Welcome(Message, tag="welcome", frozen=True):
    """The hello was accepted."""

    process: Name
    generation: int


class Refused(Message, tag="refused", frozen=True):
    """The hello, or what followed it, was not accepted.

    ``before_hello``: the message came before any hello. A caller begins with one, so the connection on which it said hello is
    lost, and its transport has made another.
    """

    reason: Text
    before_hello: bool = False


class Reply(Message, tag="reply", frozen=True):
    """The result of a call."""

    id: Identifier
    result: msgspec.Raw


class Accepted(Message, tag="accepted", frozen=True):
    """A tell ran to its end; its credit returns."""

    id: Identifier


class Failure(Message, tag="failure", frozen=True):
    """A call, tell or stream that ended with an error. ``attributes`` rebuild an error of our own tree."""

    id: Identifier
    kind: Name
    message: str
    traceback: str
    attributes: dict[str, Any] | None


class Progress(Message, tag="progress", frozen=True):
    """A watched call is alive and has got further."""

    id: Identifier


class StreamItem(Message, tag="item", frozen=True):
    """One item of a stream. ``place`` counts from 0, so that one that is missing, late or doubled is seen."""

    id: Identifier
    item: msgspec.Raw
    place: Identifier = 0


class StreamEnd(Message, tag="end", frozen=True):
    """The stream is over, after ``items`` items."""

    id: Identifier
    items: Identifier = 0


TO_CALLEE = Hello | Call | Cancel | Credit | Goodbye
TO_CALLER = Welcome | Refused | Reply | Accepted | Failure | Progress | StreamItem | StreamEnd | Goodbye


def check_name(what: str, name: str) -> None:
    """Raises WireError for a name that no message can carry; whoever gets one ends the connection, and all calls on it."""
    if len(name) > LONGEST_NAME:
        raise WireError(f"{what} has {len(name)} characters, at most {LONGEST_NAME} travel: {name[:40]!r}...")
    if not name.isascii():
        try:
            name.encode()
        except UnicodeEncodeError as error:
            raise WireError(f"{what} is no text that can travel: {name!r}") from error


def schema_hash() -> str:
    """Hash over the names, order and types of all fields, so that two builds that disagree refuse each other."""
    to_callee = (Hello, Call, Cancel, Credit, Goodbye)
    to_caller = (Welcome, Refused, Reply, Accepted, Failure, Progress, StreamItem, StreamEnd)
    kinds: tuple[type[msgspec.Struct], ...] = (ActorAddress, *to_callee, *to_caller, *SHARING)
    described = [(kind.__name__, [(field.name, _bare(field.type)) for field in msgspec.structs.fields(kind)]) for kind in kinds]
    return hashlib.blake2b(repr(described).encode(), digest_size=8).hexdigest()


def _bare(kind: Any) -> str:
    """A type without its limits: typing may hand out an equal limit of another spelling (0 for 0.0) that it has seen first."""
    return repr(get_args(kind)[0] if get_origin(kind) is Annotated else kind)


SCHEMA = schema_hash()
