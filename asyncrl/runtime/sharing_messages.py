"""What the two ends of a connection within one host tell each other about memory that they share. Both may say all of it.

Each is one frame: ``MARK``, then MessagePack. ``Shared`` stands in front of the message whose buffers it replaces.
"""

from typing import Annotated

import msgspec

from asyncrl.errors import WireError

MARK = b"\xc0"
"""A MessagePack nil: no envelope begins with it."""

Number = Annotated[int, msgspec.Meta(ge=0)]
Proof = Annotated[bytes, msgspec.Meta(min_length=16, max_length=64)]


class SharingMessage(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """Root of the messages."""


class Able(SharingMessage, tag="able", frozen=True):
    """The caller understands these messages; before it has said so it is sent none."""


class Offer(SharingMessage, tag="offer", frozen=True):
    """The sender has large buffers to send. Whoever finds ``proof`` in this memory file of process ``process`` can have them."""

    process: Number
    descriptor: Number
    inode: Number
    size: Number
    proof: Proof


class Answer(SharingMessage, tag="answer", frozen=True):
    """The offer was taken, or why not: "" is yes."""

    reason: Annotated[str, msgspec.Meta(max_length=1024)]


class Lent(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """A segment of the sender's pool: the receiver's until it says ``Released`` or ``Adopted`` of this loan. Loans rise."""

    loan: Number
    number: Number
    descriptor: Number
    inode: Number
    size: Number


class Place(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """Buffer ``index`` of the message is ``length`` bytes at ``offset`` of the segment that stands at ``segment`` in the lists."""

    index: Number
    segment: Number
    offset: Number
    length: Number


class Shared(SharingMessage, tag="shared", frozen=True):
    """Which buffers of the message behind it lie in segments; the others are frames. ``places`` in the order of their indices.

    ``lent`` are segments of the sender; ``returned`` are loans that end with this message, so that their segments are the
    receiver's own again. In ``places`` the second list goes on counting where the first ends.
    """

    lent: list[Lent]
    returned: list[Number]
    places: list[Place]


class Released(SharingMessage, tag="released", frozen=True):
    """Nothing at the receiver refers to what it got by these loans any more."""

    loans: list[Number]


class Adopted(SharingMessage, tag="adopted", frozen=True):
    """The receiver keeps what it got by these loans: the segments are no longer the sender's."""

    loans: list[Number]


class Retired(SharingMessage, tag="retired", frozen=True):
    """These segments of the sender will not be lent again; their mappings may go."""

    numbers: list[Number]


SHARING: tuple[type[msgspec.Struct], ...] = (Able, Offer, Answer, Lent, Place, Shared, Released, Adopted, Retired)
"""All of them, for the schema of the wire."""

_DECODER: msgspec.msgpack.Decoder[SharingMessage] = msgspec.msgpack.Decoder(Able | Offer | Answer | Shared | Released | Adopted | Retired)
_ENCODER = msgspec.msgpack.Encoder()


def marked(message: SharingMessage) -> bytes:
    """The frame of a message."""
    return MARK + _ENCODER.encode(message)


def is_marked(frame: memoryview) -> bool:
    """Whether a frame is one of these messages, or pretends to be."""
    return len(frame) > 0 and frame[0] == MARK[0]


def unmarked(frame: memoryview) -> SharingMessage:
    """The message of a frame. Raises WireError."""
    try:
        return _DECODER.decode(frame[1:])
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        raise WireError(f"a message about shared memory that cannot be read ({error})") from error
