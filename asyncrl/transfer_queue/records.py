"""The one on-disk form of the queue: records behind one another in append-only files.

A record is a frame (magic, sizes, two CRC32), a MessagePack header, and the packed columns that the header describes, each
buffer padded to 8 bytes. The header has a checksum of its own: what a damaged body held can still be named.
"""

import math
import struct
import zlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec
import numpy as np

from asyncrl.errors import WireError
from asyncrl.runtime.effects import OperationKey
from asyncrl.tensors.dtypes import STORAGE
from asyncrl.tensors.wire import Column, check
from asyncrl.transfer_queue.rows import Origin, Tag

MAGIC = b"ATQ1"
FRAME = struct.Struct("<4sIQII")
"""Magic, bytes of the header, bytes of the body, CRC32 of the header, CRC32 of the body."""
ALIGNED = 8
LARGEST_HEADER = 1 << 28
LARGEST_BODY = 1 << 34


class FieldHead(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """One column of a record: ``size`` is the bytes of its data; ``origins`` are (origin, rows that it wrote), in row order."""

    name: str
    dtype: str
    trailing: tuple[int, ...]
    jagged: bool
    size: int
    origins: list[tuple[Origin, int]]


class PutRecord(msgspec.Struct, frozen=True, tag="put", forbid_unknown_fields=True):
    """Rows that were written: their keys, tags by key, and the columns that follow.

    ``event`` is the number of this change of the shard; 0 for rows that compaction has only moved.
    """

    event: int
    partition: str
    keys: list[str]
    tags: dict[str, Tag]
    fields: list[FieldHead]
    operation: OperationKey | None = None


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
    """Bytes of a file that hold no whole record. ``keys`` as far as its header can still be read; ``torn`` at a file's end."""

    file: str
    offset: int
    size: int
    reason: str
    torn: bool = False
    partition: str = ""
    keys: list[str] = []


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
    frame = FRAME.pack(MAGIC, len(header), size, zlib.crc32(header), checksum)
    return [frame + header, *body]


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
    if left < FRAME.size:
        return Damage(file, position, left, "a frame is cut off", torn=True)
    magic, header_size, body_size, header_check, body_check = FRAME.unpack_from(data, position)
    if magic != MAGIC or header_size > LARGEST_HEADER or body_size > LARGEST_BODY:
        return _until_next(file, data, position, "no frame")
    start = position + FRAME.size
    header = data[start : start + header_size]
    if len(header) < header_size:
        return _until_next(file, data, position, "a header is cut off")
    if zlib.crc32(header) != header_check:
        return _until_next(file, data, position, "the checksum of a header differs")
    try:
        record = DECODER.decode(header)
    except (msgspec.DecodeError, RecursionError) as error:
        return _until_next(file, data, position, f"a header cannot be read ({error})")
    body = data[start + header_size : start + header_size + body_size]
    size = FRAME.size + header_size + body_size
    if len(body) < body_size:
        return Damage(file, position, left, "a body is cut off", True, record.partition, record.keys)
    if zlib.crc32(body) != body_check:
        return Damage(file, position, size, "the checksum of a body differs", False, record.partition, record.keys)
    return record, body, size


def _until_next(file: str, data: memoryview, position: int, reason: str) -> Damage:
    """Damage up to the next place that looks like a frame, or to the end of the file."""
    found = bytes(data[position + 1 :]).find(MAGIC)
    size = len(data) - position if found < 0 else found + 1
    return Damage(file, position, size, reason, torn=found < 0)
