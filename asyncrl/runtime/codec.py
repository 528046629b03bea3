"""Values to bytes and frames, and back; nothing that is decoded can run code.

``Codec`` belongs to one annotation and holds its cached decoder. ``encode`` and ``decode`` are the same for a single use.
Plain values are MessagePack inside the header; the buffers of registered classes travel as frames of their own.
"""

import numbers
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import msgspec

from asyncrl.errors import WireError
from asyncrl.runtime.shapes import REGISTERED, Buffer, Registered, shape_of

T = TypeVar("T")

MAX_FRAMES = 4096
"""Buffer frames of one message."""
MAX_FRAME_BYTES = 1 << 31
"""Bytes of one frame, header included."""


def _plain_number(value: Any) -> Any:
    """Scalars of array libraries register with ``numbers``; everything else has no place on the wire."""
    if isinstance(value, numbers.Integral):
        return int(value)
    if isinstance(value, numbers.Real):
        return float(value)
    raise TypeError(f"{type(value).__name__} has no wire form; use msgspec types or register_codec")


ENCODER = msgspec.msgpack.Encoder(enc_hook=_plain_number)


def register_codec(
    cls: type[T],
    pack: Callable[[T], tuple[Any, list[Buffer]]],
    unpack: Callable[[Any, list[memoryview]], T],
) -> None:
    """Lets objects of ``cls`` travel anywhere inside an argument or result that is annotated with it.

    ``pack`` gives a head (plain data) and buffers, which become frames without a copy; they must not change before the
    call has been answered. ``unpack`` gets the head and the frames, which may be read-only. Registering the same class
    again replaces its codec for annotations that were not used yet. Raises TypeError if ``cls`` is no class.
    """
    if not isinstance(cls, type):
        raise TypeError(f"register_codec needs a class, got {cls!r}")
    REGISTERED[cls] = Registered(cls, pack, unpack)


class Codec:
    """Encoder and decoder of one annotation."""

    def __init__(self, annotation: Any) -> None:
        try:
            self.shape = shape_of(annotation)
            self._decoder = msgspec.msgpack.Decoder(self.shape.wire)
        except (TypeError, ValueError) as error:
            raise WireError(f"{annotation!r} cannot travel: {error}") from error

    def encode(self, value: Any) -> tuple[bytes, list[Buffer]]:
        """Bytes and frames of ``value``. Raises WireError for something that has no wire form."""
        frames: list[Buffer] = []
        try:
            pack = self.shape.pack
            return ENCODER.encode(pack(value, frames) if pack else value), check_frames(frames)
        except (TypeError, ValueError, RecursionError, AttributeError, OverflowError) as error:
            raise WireError(f"cannot encode {type(value).__name__}: {error}") from error

    def decode(self, data: bytes | memoryview | msgspec.Raw, frames: Sequence[memoryview] = ()) -> Any:
        """The value. Raises WireError when bytes or frames do not fit the annotation."""
        try:
            value = self._decoder.decode(data)
            unpack = self.shape.unpack
            return unpack(value, frames) if unpack else value
        except WireError:
            raise
        except Exception as error:
            # Not only msgspec's: the constructors of the value's own types run here, and may raise anything.
            raise WireError(str(error) or type(error).__name__) from error


def check_frames(frames: list[Buffer]) -> list[Buffer]:
    """The frames as flat byte views. Raises WireError for too many, too large or scattered ones."""
    if not frames:
        return frames
    if len(frames) > MAX_FRAMES:
        raise WireError(f"{len(frames)} buffers in one message, at most {MAX_FRAMES} travel; join them first")
    views = [memoryview(frame) for frame in frames]
    for index, view in enumerate(views):
        if not view.c_contiguous:
            raise WireError(f"buffer {index} is not contiguous")
        if view.nbytes > MAX_FRAME_BYTES:
            raise WireError(f"buffer {index} has {view.nbytes} bytes, at most {MAX_FRAME_BYTES} travel; cut it")
    # memoryview.cast refuses a zero in the shape.
    return [view.cast("B") if view.nbytes else memoryview(b"") for view in views]


_CODECS: dict[Any, Codec] = {}


def codec_for(annotation: Any) -> Codec:
    """The cached codec of a hashable annotation."""
    found = _CODECS.get(annotation)
    if found is None:
        found = _CODECS[annotation] = Codec(annotation)
    return found


def encode(value: Any) -> tuple[bytes, list[Buffer]]:
    """Encodes by the value's own class."""
    return codec_for(type(value)).encode(value)


def decode(annotation: Any, data: bytes, frames: Sequence[memoryview] = ()) -> Any:
    """Decodes ``data`` as ``annotation``."""
    return codec_for(annotation).decode(data, frames)
