"""The element types a column may have, and how Python and numpy values become them without losing anything.

numpy has no bfloat16: a column of it holds the raw 16 bit as uint16, and ``batch`` alone gives them their meaning.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

STORAGE: dict[str, np.dtype[Any]] = {
    "int64": np.dtype("<i8"),
    "int32": np.dtype("<i4"),
    "int16": np.dtype("<i2"),
    "int8": np.dtype("i1"),
    "uint64": np.dtype("<u8"),
    "uint32": np.dtype("<u4"),
    "uint16": np.dtype("<u2"),
    "uint8": np.dtype("u1"),
    "bool": np.dtype("?"),
    "float64": np.dtype("<f8"),
    "float32": np.dtype("<f4"),
    "float16": np.dtype("<f2"),
    "bfloat16": np.dtype("<u2"),
    "str": np.dtype("u1"),
    "bytes": np.dtype("u1"),
    "json": np.dtype("u1"),
}
"""How the elements of each dtype lie in memory, little endian."""

TEXT = frozenset({"str", "bytes", "json"})
"""The dtypes whose rows are byte strings."""

_ACCEPTS = {"b": "b", "i": "biu", "u": "biu", "f": "biuf"}
"""Kinds of values that may become a kind of element: numbers widen, and never lose a fraction."""


def name_of(dtype: np.dtype[Any]) -> str:
    """The column dtype of a numpy dtype. Raises ValueError when there is none."""
    if dtype.name not in STORAGE:
        raise ValueError(f"no column holds numpy's {dtype.name}; known are {', '.join(STORAGE)}")
    return dtype.name


def numeric(dtype: str) -> np.dtype[Any]:
    """The storage of a numeric dtype. Raises ValueError for an unknown name or a text dtype."""
    if dtype not in STORAGE or dtype in TEXT:
        raise ValueError(f"{dtype!r} is no numeric dtype; known are {', '.join(n for n in STORAGE if n not in TEXT)}")
    return STORAGE[dtype]


def array_of(values: Any, dtype: str | None) -> NDArray[Any]:
    """``values`` as an array, as numpy reads them, but for integers of 64 bits without a sign beside smaller ones: they stay exact.

    numpy makes floats of such a mixture. Raises ValueError when one of them is below 0 or above 64 bits.
    """
    array = np.asarray(values)
    if isinstance(values, np.ndarray) or array.dtype.kind != "f" or dtype not in (None, "uint64") or not array.size:
        return array
    if not array.max() >= 2**63:
        return array
    exact = np.asarray(values, object)
    if not all(isinstance(value, int | np.integer) for value in exact.flat):
        return array
    try:
        return exact.astype(np.uint64)
    except OverflowError:
        raise ValueError(f"values from {min(exact.flat)} to {max(exact.flat)} do not fit a column of uint64") from None


def coerce(values: NDArray[Any], dtype: str) -> NDArray[Any]:
    """``values`` as elements of ``dtype``, without a copy where they already are. Shape unchanged.

    Raises ValueError when that would cut a fraction, wrap an integer or guess a meaning (bfloat16 takes only its raw
    bits as integers). A float64 does become a float32: Python has no other floats.
    """
    storage = numeric(dtype)
    if values.dtype == storage:
        return np.ascontiguousarray(values).reshape(values.shape)
    if values.size == 0:
        return np.empty(values.shape, storage)
    if values.dtype.kind not in _ACCEPTS[storage.kind]:
        meaning = "raw 16 bit integers" if dtype == "bfloat16" else dtype
        raise ValueError(f"{values.dtype.name} values do not fit a column of {dtype}: give {meaning}")
    if storage.kind in "iu":
        limits = np.iinfo(storage)
        low, high = int(values.min()), int(values.max())
        if low < limits.min or high > limits.max:
            raise ValueError(f"values from {low} to {high} do not fit a column of {dtype}")
    return values.astype(storage)


def offsets_of(lengths: Sequence[int] | NDArray[np.int64]) -> NDArray[np.int64]:
    """Where each row starts, and the end: lengths [N] -> offsets [N+1], int64.

    >>> offsets_of([2, 0, 1]).tolist()
    [0, 2, 2, 3]
    """
    offsets = np.zeros(len(lengths) + 1, np.int64)
    np.cumsum(np.asarray(lengths, np.int64), out=offsets[1:])
    return offsets
