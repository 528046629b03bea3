"""The one on-disk form of the queue: records behind one another in append-only files.

A record is a frame (magic, sizes, three CRC32), a MessagePack header, and the packed columns that the header describes, each
buffer padded to 8 bytes. Frame, header and body have a checksum each: sizes that fit theirs say where the next record begins,
whatever became of this one, and a header that fits its own names what a damaged body held.
"""

import logging
import math
import re
import struct
import zlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec
import numpy as np

from asyncrl.errors import QueueStorageError, WireError
from asyncrl.runtime.effects import OperationKey
from asyncrl.tensors.dtypes import STORAGE
from asyncrl.tensors.wire import Column, check
from asyncrl.transfer_queue.rows import Origin, Tag

logger = logging.getLogger(__name__)

MAGIC = b"ATQ2"
OLDER = (b"ATQ1",)
"""How files of earlier formats begin. No single flipped bit makes one of the other."""
SIZES = struct.Struct("<4sIQII")
"""Magic, bytes of the header, bytes of the body, CRC32 of the header, CRC32 of the body."""
CHECK = struct.Struct("<I")
"""CRC32 of the sizes before it."""
FRAME_SIZE = SIZES.size + CHECK.size
ALIGNED = 8


class FieldHead(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """One column of a record: ``size`` is the bytes of its data; ``origins`` are (origin, rows that it wrote), in row order."""

    name: str
    dtype: str
    trailing: tuple[int, ...]
    jagged: bool
    size: int
    origins: list[tuple[Origin, int]]


class PutRecord(msgspec.Struct, frozen=True, tag="put", forbid_unknown_fields=True, omit_defaults=True):
    """Rows that were written: their keys, tags by key, and the columns that follow.

    ``event`` is the number of this change of the shard; 0 for rows that are only written down again. ``merges``: the tags
    were merged into rows that were there; it makes none.
    """

    event: int
    partition: str
    keys: list[str]
    tags: dict[str, Tag]
    fields: list[FieldHead]
    operation: OperationKey | None = None
    merges: bool = False


class ClearRecord(msgspec.Struct, frozen=True, tag="clear", forbid_unknown_fields=True):
    """Rows that were removed. ``retain`` >= 0: a resume from a checkpoint before that step brings them back."""

    event: int
    partition: str
    keys: list[str]
    retain: int = -1
    operation: OperationKey | None = None


Record = PutRecord | ClearRecord
ENCODER = msgspec.msgpack.Encoder()
DECODER: msgspec.msgpack.Decoder[Record] = msgspec.msgpack.Decoder(Record)


class Damage(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Bytes of a file that hold no whole record. ``record`` is its header, where that is whole; ``torn``: it was never all written."""

    file: str
    offset: int
    size: int
    reason: str
    torn: bool = False
    record: Record | None = None

    @property
    def partition(self) -> str:
        """The partition of the rows that it was about, "" where that is not known."""
        return "" if self.record is None else self.record.partition

    @property
    def keys(self) -> list[str]:
        """The keys of the rows that it was about, as far as that is known."""
        return [] if self.record is None else self.record.keys

    def in_words(self) -> str:
        """One line for logs: where, what, and which rows as far as known."""
        what = f"{self.size} bytes at {self.offset} are lost ({self.reason})" if self.size else self.reason
        which = f"; rows {', '.join(self.keys[:8])} of partition {self.partition!r}" if self.keys else ""
        return f"{self.file}: {what}{which}"


def field_heads(fields: Mapping[str, Column], origins: Mapping[str, list[tuple[Origin, int]]]) -> list[FieldHead]:
    """What a record says of its columns."""
    return [
        FieldHead(name, column.dtype, column.trailing, column.offsets is not None, column.nbytes, origins[name])
        for name, column in fields.items()
    ]


def encode(record: Record, columns: Sequence[Column] = ()) -> list[Any]:
    """The buffers of a record, to be written one after another."""
    header = ENCODER.encode(record)
    body: list[Any] = []
    size = checksum = 0
    for column in columns:
        parts = [column.values.reshape(-1).view(np.uint8).data]
        if column.offsets is not None:
            parts.append(np.ascontiguousarray(column.offsets).view(np.uint8).data)
        for part in parts:
            pad = -part.nbytes % ALIGNED
            for piece in (part, bytes(pad)) if pad else (part,):
                if len(piece):
                    checksum = zlib.crc32(piece, checksum)
                    size += len(piece)
                    body.append(piece)
    sizes = SIZES.pack(MAGIC, len(header), size, zlib.crc32(header), checksum)
    return [sizes + CHECK.pack(zlib.crc32(sizes)) + header, *body]


def columns_of(record: PutRecord, body: memoryview) -> dict[str, Column]:
    """The columns of a put, as views of its body. Raises WireError when they do not fit the header."""
    found: dict[str, Column] = {}
    position = 0

    def take(size: int) -> memoryview:
        nonlocal position
        if size < 0 or position + size > len(body):
            raise WireError(f"a record's body of {len(body)} bytes ends before {position + size}")
        piece = body[position : position + size]
        position += size + (-size % ALIGNED)
        return piece

    for head in record.fields:
        if head.dtype not in STORAGE:
            raise WireError(f"field {head.name!r} has the unknown dtype {head.dtype!r}")
        data = take(head.size)
        offsets = np.frombuffer(take(8 * (len(record.keys) + 1)), "<i8") if head.jagged else None
        values = np.frombuffer(data, STORAGE[head.dtype])
        if math.prod(head.trailing) and head.trailing:
            values = values.reshape(-1, *head.trailing)
        column = Column(head.dtype, head.trailing, values if head.trailing == () or values.size else data, offsets, len(record.keys))
        check(column)
        found[head.name] = column
    return found


def check_format(path: str, data: memoryview) -> None:
    """Raises QueueStorageError for a file of an earlier format, which nothing here can read."""
    begin = bytes(data[: len(MAGIC)])
    if begin in OLDER:
        raise QueueStorageError(path, f"it is in format {begin.decode()}, this version reads and writes {MAGIC.decode()} only")


def read(file: str, data: memoryview) -> Iterator[tuple[Record, memoryview] | Damage]:
    """The records of a file in order, and what is damaged between them; goes on behind damage where a record begins."""
    position = 0
    while position < len(data):
        found = _at(file, data, position)
        if isinstance(found, Damage):
            yield found
            position += found.size
        else:
            record, body, size = found
            yield record, body
            position += size


def _at(file: str, data: memoryview, position: int) -> tuple[Record, memoryview, int] | Damage:
    left = len(data) - position
    if left < FRAME_SIZE:
        return Damage(file, position, left, "a frame is cut off", torn=True)
    frame = bytes(data[position : position + FRAME_SIZE])
    if not _whole(frame):
        mended = _mended(frame)
        if mended is None:
            return _until_next(file, data, position)
        logger.warning("%s: one bit of the frame at %d had flipped", file, position)
        frame = mended
    _, header_size, body_size, header_check, body_check = SIZES.unpack_from(frame)
    size = FRAME_SIZE + header_size + body_size
    start = position + FRAME_SIZE
    header = data[start : start + header_size]
    if len(header) < header_size:
        return Damage(file, position, left, "a header is cut off", torn=True)
    record: Record | None = None
    reason = "the checksum of a header differs"
    if zlib.crc32(header) == header_check:
        try:
            record = DECODER.decode(header)
        except (msgspec.DecodeError, RecursionError) as error:
            reason = f"a header cannot be read ({error})"
    body = data[start + header_size : position + size]
    if len(body) < body_size:
        return Damage(file, position, left, "a body is cut off", True, record)
    if record is None:
        return Damage(file, position, size, reason)
    if zlib.crc32(body) != body_check:
        return Damage(file, position, size, "the checksum of a body differs", False, record)
    return record, body, size


def _whole(frame: bytes) -> bool:
    sizes, check = frame[: SIZES.size], frame[SIZES.size :]
    return len(frame) == FRAME_SIZE and sizes.startswith(MAGIC) and CHECK.pack(zlib.crc32(sizes)) == check


def _mended(frame: bytes) -> bytes | None:
    """The frame with the one bit turned back that makes it whole; None where no bit does.

    Frames of this length that fit a CRC32 differ in 5 bits or more, so it is not taken for another one.
    """
    bits = int.from_bytes(frame, "little")
    for bit in range(8 * FRAME_SIZE):
        turned = (bits ^ (1 << bit)).to_bytes(FRAME_SIZE, "little")
        if _whole(turned):
            return turned
    return None


def _until_next(file: str, data: memoryview, position: int) -> Damage:
    """Damage up to the next whole record, or to the end of the file. A kill leaves no such end: it cuts, and changes nothing."""
    for found in re.finditer(re.escape(MAGIC), data[position + 1 :]):
        next_position = position + 1 + found.start()
        if _whole(bytes(data[next_position : next_position + FRAME_SIZE])):
            return Damage(file, position, next_position - position, "no frame")
    return Damage(file, position, len(data) - position, "no frame")
