"""``Column``: one field of N rows as one packed buffer and one array of offsets. numpy only, no torch.

``N`` rows, ``T`` elements along the first dimension of all rows of a jagged column together. A jagged column stays
jagged and a dense one dense, whatever lengths its rows happen to have.
"""

import json
import math
from collections.abc import Callable, Sequence
from itertools import chain, pairwise
from typing import Any, Self

import msgspec
import numpy as np
from numpy.typing import NDArray

from asyncrl.errors import WireError
from asyncrl.tensors.dtypes import STORAGE, TEXT, array_of, coerce, name_of, numeric, offsets_of

Buffer = bytes | bytearray | memoryview | NDArray[Any]
Allocate = Callable[[int], memoryview]
"""Gives writable memory of so many bytes."""
Layout = tuple[str, tuple[int, ...], bool]
"""dtype, trailing shape, jagged: what all columns of one field have in common."""

SHORT = 256
"""Mean length of rows below which ``take`` picks elements one by one, above it copies row by row: what is faster."""


class ColumnHeader(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """What goes into the message beside the frames of a column."""

    dtype: str
    trailing: tuple[int, ...]
    rows: int
    jagged: bool


class Column(msgspec.Struct, frozen=True, eq=False, gc=False):
    """One field of N rows. Its buffers are shared, never copied: whoever hands one over no longer writes to it.

    dtype: a name of ``dtypes.STORAGE``; bfloat16 holds raw 16 bit integers.
    trailing: jagged: a row's shape after its first, ragged dimension; dense: the shape of a whole row.
    data: one C-contiguous buffer, little endian.
    offsets: int64 [N+1], in elements of the first dimension (bytes for str, bytes and json); None means dense.

    >>> column = Column.jagged("int64", [[1, 2], [], [3]])
    >>> column.to_list(), column.lengths().tolist()
    ([[1, 2], [], [3]], [2, 0, 1])
    """

    dtype: str
    trailing: tuple[int, ...]
    data: Buffer
    offsets: NDArray[np.int64] | None
    rows: int

    @classmethod
    def jagged(cls, dtype: str, rows: Sequence[Any], trailing: tuple[int, ...] | None = None) -> Self:
        """Rows of different lengths: lists of numbers, or arrays [length, *trailing].

        ``trailing`` is needed only where no row shows it. Raises ValueError for values or shapes that do not fit.
        """
        if trailing in (None, ()) and all(isinstance(row, list) for row in rows):
            flat = array_of(list(chain.from_iterable(rows)), dtype)
            if flat.ndim == 1:
                return cls(dtype, (), coerce(flat, dtype), offsets_of([len(row) for row in rows]), len(rows))
        arrays = [array_of(row, dtype) for row in rows]
        if trailing is None:
            trailing = next((array.shape[1:] for array in arrays if array.size or array.ndim > 1), ())
        for index, array in enumerate(arrays):
            if array.ndim == 1 and array.size == 0:
                arrays[index] = array.reshape(0, *trailing)
            elif array.ndim == 0 or array.shape[1:] != trailing:
                raise ValueError(f"row {index} has shape {array.shape}, the rows of this column are {describe((dtype, trailing, True))}")
        parts = [coerce(array, dtype) for array in arrays]
        values = np.concatenate(parts) if parts else np.empty((0, *trailing), numeric(dtype))
        return cls(dtype, trailing, values, offsets_of([len(part) for part in parts]), len(parts))

    @classmethod
    def dense(cls, array: NDArray[Any] | Sequence[Any], dtype: str | None = None) -> Self:
        """Rows of one shape: array [N, *trailing]. The dtype is the array's own unless given (bfloat16 must be)."""
        values = array_of(array, dtype)
        if values.ndim == 0:
            raise ValueError("a dense column needs a dimension of rows, got a scalar")
        dtype = dtype or name_of(values.dtype)
        return cls(dtype, values.shape[1:], coerce(values, dtype), None, len(values))

    @classmethod
    def strings(cls, rows: Sequence[str]) -> Self:
        """One string a row; lone surrogates pass."""
        return cls._text("str", [row.encode("utf-8", "surrogatepass") for row in rows])

    @classmethod
    def blobs(cls, rows: Sequence[bytes]) -> Self:
        """One byte string a row."""
        return cls._text("bytes", list(rows))

    @classmethod
    def objects(cls, rows: Sequence[Any]) -> Self:
        """One JSON-like object a row. Tuples come back as lists. Raises TypeError for what JSON cannot hold."""
        for row in rows:
            _check_json(row)
        return cls._text("json", [json.dumps(row, separators=(",", ":")).encode() for row in rows])

    @classmethod
    def _text(cls, dtype: str, rows: list[bytes]) -> Self:
        return cls(dtype, (), b"".join(rows), offsets_of([len(row) for row in rows]), len(rows))

    @staticmethod
    def empty(layout: Layout) -> "Column":
        """A column of no rows."""
        dtype, trailing, jagged = layout
        return Column(dtype, trailing, b"", offsets_of([]) if jagged else None, 0)

    @property
    def values(self) -> NDArray[Any]:
        """All elements: jagged [T, *trailing], dense [N, *trailing]. A view of the buffer, in the dtype's storage."""
        first = self.rows if self.offsets is None else int(self.offsets[-1])
        storage, shape = STORAGE[self.dtype], (first, *self.trailing)
        if isinstance(self.data, np.ndarray) and self.data.dtype == storage and self.data.shape == shape:
            return self.data.view()
        return np.frombuffer(self.data, storage).reshape(shape)

    @property
    def nbytes(self) -> int:
        """Size of the packed buffer in bytes; the offsets are not in it."""
        data = self.data
        return len(data) if isinstance(data, (bytes, bytearray)) else data.nbytes

    @property
    def layout(self) -> Layout:
        """What must agree between two columns of one field."""
        return self.dtype, self.trailing, self.offsets is not None

    def lengths(self) -> NDArray[np.int64]:
        """Elements along the first dimension of each row, int64 [N]. Raises ValueError for a dense column."""
        if self.offsets is None:
            raise ValueError(f"rows of a dense column ({describe(self.layout)}) have no lengths")
        return np.diff(self.offsets)

    def row(self, index: int) -> Any:
        """Row ``index``: an array view (dense rows without trailing shape: a numpy scalar), a str, bytes or an object."""
        if not 0 <= index < self.rows:
            raise IndexError(f"row {index} of a column with {self.rows} rows")
        if self.offsets is None:
            return self.values[index]
        found = self.values[int(self.offsets[index]) : int(self.offsets[index + 1])]
        return _read_text(self.dtype, found.tobytes()) if self.dtype in TEXT else found

    def to_list(self) -> list[Any]:
        """All rows as plain Python values: (nested lists of) numbers, strings, bytes or objects."""
        if self.offsets is None:
            return list(self.values.tolist())
        if self.dtype in TEXT:
            whole = self.values.tobytes()
            return [_read_text(self.dtype, whole[start:stop]) for start, stop in pairwise(self.offsets.tolist())]
        values = self.values
        return [values[start:stop].tolist() for start, stop in pairwise(self.offsets.tolist())]

    def copy(self) -> "Column":
        """The same rows in memory of their own."""
        offsets = None if self.offsets is None else self.offsets.copy()
        return Column(self.dtype, self.trailing, self.values.copy(), offsets, self.rows)

    def slice(self, start: int, stop: int) -> "Column":
        """Rows ``start`` to ``stop`` (exclusive), as a view."""
        if not 0 <= start <= stop <= self.rows:
            raise IndexError(f"rows {start}:{stop} of a column with {self.rows} rows")
        if self.offsets is None:
            return Column(self.dtype, self.trailing, self.values[start:stop], None, stop - start)
        offsets = self.offsets[start : stop + 1]
        values = self.values[int(offsets[0]) : int(offsets[-1])]
        return Column(self.dtype, self.trailing, values, offsets - offsets[0], stop - start)

    def take(self, indices: Sequence[int] | NDArray[np.int64], allocate: Allocate | None = None) -> "Column":
        """The rows at ``indices``, in that order and copied, into memory of ``allocate`` if it is given.

        Raises IndexError for an index out of range.
        """
        chosen = np.asarray(indices, np.int64)
        if chosen.size and (int(chosen.min()) < 0 or int(chosen.max()) >= self.rows):
            raise IndexError(f"rows {int(chosen.min())} to {int(chosen.max())} of a column with {self.rows} rows")
        values = self.values
        if self.offsets is None:
            packed = room_for((len(chosen), *self.trailing), values.dtype, allocate)
            # Every index was checked above; the other modes write to the result directly.
            np.take(values, chosen, axis=0, out=packed, mode="clip")
            return Column(self.dtype, self.trailing, packed, None, len(chosen))
        starts, stops = self.offsets[chosen], self.offsets[chosen + 1]
        offsets = offsets_of(stops - starts)
        packed = room_for((int(offsets[-1]), *self.trailing), values.dtype, allocate)
        if int(offsets[-1]) < SHORT * len(chosen):
            places = np.repeat(starts - offsets[:-1], stops - starts) + np.arange(offsets[-1])
            np.take(values, places, axis=0, out=packed, mode="clip")
        elif len(chosen):
            np.concatenate([values[start:stop] for start, stop in zip(starts.tolist(), stops.tolist(), strict=True)], out=packed)
        return Column(self.dtype, self.trailing, packed, offsets, len(chosen))

    @staticmethod
    def concat(columns: Sequence["Column"], allocate: Allocate | None = None) -> "Column":
        """All rows of one or more columns, copied into memory of ``allocate`` if it is given and there is more than one.

        Raises ValueError when their layouts differ.
        """
        first = columns[0]
        for column in columns:
            if column.layout != first.layout:
                raise ValueError(f"cannot join {describe(first.layout)} and {describe(column.layout)}")
        if len(columns) == 1:
            return first
        parts = [column.values for column in columns]
        values = room_for((sum(len(part) for part in parts), *first.trailing), parts[0].dtype, allocate)
        np.concatenate(parts, out=values)
        rows = sum(column.rows for column in columns)
        if first.offsets is None:
            return Column(first.dtype, first.trailing, values, None, rows)
        lengths = np.concatenate([column.lengths() for column in columns])
        return Column(first.dtype, first.trailing, values, offsets_of(lengths), rows)


def room_for(shape: tuple[int, ...], dtype: np.dtype[Any], allocate: Allocate | None) -> NDArray[Any]:
    """An array to be written: of memory of its own, or of what ``allocate`` gives for its bytes."""
    if allocate is None:
        return np.empty(shape, dtype)
    return np.frombuffer(allocate(math.prod(shape) * dtype.itemsize), dtype).reshape(shape)


def describe(layout: Layout) -> str:
    """A layout as error messages show it.

    >>> describe(("float32", (3,), True)), describe(("bool", (), False)), describe(("str", (), True))
    ('jagged float32 [*, 3]', 'dense bool []', 'str')
    """
    dtype, trailing, jagged = layout
    if dtype in TEXT:
        return dtype
    shape = ", ".join([*(["*"] if jagged else []), *map(str, trailing)])
    return f"{'jagged' if jagged else 'dense'} {dtype} [{shape}]"


def pack(column: Column) -> tuple[ColumnHeader, list[Buffer]]:
    """Header and frames of a column; the frames are views of its buffers."""
    header = ColumnHeader(column.dtype, column.trailing, column.rows, column.offsets is not None)
    frames: list[Buffer] = [_as_bytes(column.values)]
    if column.offsets is not None:
        frames.append(_as_bytes(column.offsets))
    return header, frames


def unpack(header: Any, frames: Sequence[Buffer]) -> Column:
    """The column of a header (the struct, or what MessagePack made of it) and its frames, without a copy.

    Everything is checked before use. Raises WireError when header and frames do not fit each other.
    """
    try:
        head = header if isinstance(header, ColumnHeader) else msgspec.convert(header, ColumnHeader)
    except msgspec.ValidationError as error:
        raise WireError(f"a column with the header {header!r}: {error}") from error
    if len(frames) != 1 + head.jagged:
        raise WireError(f"a column of {describe((head.dtype, head.trailing, head.jagged))} came with {len(frames)} frames")
    offsets: NDArray[np.int64] | None = None
    if head.jagged:
        raw = np.frombuffer(frames[1], np.uint8)
        if raw.nbytes != 8 * (head.rows + 1):
            raise WireError(f"{head.rows} jagged rows need {head.rows + 1} offsets, got {raw.nbytes} bytes")
        offsets = raw.view("<i8")
    column = Column(head.dtype, head.trailing, frames[0], offsets, head.rows)
    check(column)
    return column


def check(column: Column) -> None:
    """Raise WireError unless dtype, shape, offsets and buffer of a column fit each other."""
    problem = _problem(column)
    if problem:
        raise WireError(f"a column of {column.rows} rows of {describe(column.layout)}{problem}")


def _problem(column: Column) -> str:
    """What does not fit, "" when all does."""
    dtype, trailing, offsets = column.dtype, column.trailing, column.offsets
    if dtype not in STORAGE:
        return f": unknown dtype {dtype!r}"
    if column.rows < 0 or any(size < 0 for size in trailing) or (dtype in TEXT and (trailing or offsets is None)):
        return " cannot be"
    first = column.rows
    if offsets is not None:
        if offsets.dtype != np.int64 or offsets.shape != (column.rows + 1,):
            return f" has offsets of {offsets.dtype} {offsets.shape}"
        if offsets[0] != 0 or not bool(np.all(offsets[1:] >= offsets[:-1])):
            return " has offsets that do not rise from 0"
        first = int(offsets[-1])
    needed = first * math.prod(trailing) * STORAGE[dtype].itemsize
    if column.nbytes != needed:
        return f" needs {needed} bytes, got {column.nbytes}"
    if dtype == "bool" and needed and int(np.frombuffer(column.data, np.uint8).max()) > 1:
        return " holds bytes other than 0 and 1"
    return ""


def _as_bytes(array: NDArray[Any]) -> NDArray[np.uint8]:
    return array.reshape(-1).view(np.uint8)


def _read_text(dtype: str, raw: bytes) -> Any:
    if dtype == "bytes":
        return raw
    try:
        text = raw.decode("utf-8", "surrogatepass")
        return text if dtype == "str" else json.loads(text)
    except ValueError as error:
        raise WireError(f"a row of {dtype} cannot be read: {error}") from error


def _check_json(value: Any) -> None:
    """Refuse what ``json`` would change in silence: keys that are no strings, and foreign types."""
    if isinstance(value, dict):
        for key, inner in value.items():
            if not isinstance(key, str):
                raise TypeError(f"a JSON object needs string keys, got {key!r}")
            _check_json(inner)
    elif isinstance(value, list | tuple):
        for inner in value:
            _check_json(inner)
    elif value is not None and not isinstance(value, bool | int | float | str):
        raise TypeError(f"a JSON column cannot hold {type(value).__name__}: {value!r}")
