"""``Batch``: named fields of the same N rows as torch tensors. Alone turns columns into tensors and back.

``N`` rows, ``T`` elements of a jagged field, ``*`` trailing dimensions.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from asyncrl.errors import FieldMismatch, MissingField
from asyncrl.tensors.dtypes import TEXT
from asyncrl.tensors.jagged import Jagged
from asyncrl.tensors.wire import Column

Field = Jagged | Tensor | list[Any]

TORCH: dict[str, torch.dtype] = {
    "int64": torch.int64,
    "int32": torch.int32,
    "int16": torch.int16,
    "int8": torch.int8,
    "uint64": torch.uint64,
    "uint32": torch.uint32,
    "uint16": torch.uint16,
    "uint8": torch.uint8,
    "bool": torch.bool,
    "float64": torch.float64,
    "float32": torch.float32,
    "float16": torch.float16,
    "bfloat16": torch.bfloat16,
}
_NAMES = {dtype: name for name, dtype in TORCH.items()}


@dataclass(frozen=True, slots=True, eq=False)
class Batch:
    """N rows with named fields: ``Jagged``, a dense tensor [N, *], or a list of N strings, byte strings or objects.

    ``kinds`` keeps the column dtype of the lists ("str", "bytes", "json"); a list without one is given the
    narrowest that holds it. Raises ValueError when a field has another number of rows than there are keys.
    """

    keys: tuple[str, ...]
    fields: dict[str, Field]
    kinds: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name, value in self.fields.items():
            rows = value.rows if isinstance(value, Jagged) else len(value)
            if rows != len(self.keys):
                raise ValueError(f"field {name!r} has {rows} rows, the batch has {len(self.keys)} keys")

    def __len__(self) -> int:
        return len(self.keys)

    @classmethod
    def from_columns(cls, keys: Sequence[str], columns: Mapping[str, Column]) -> "Batch":
        """Tensors over the buffers of the columns. A read-only or misaligned buffer is copied, no other."""
        fields = {name: _from_column(column) for name, column in columns.items()}
        return cls(tuple(keys), fields, {name: column.dtype for name, column in columns.items() if column.dtype in TEXT})

    def columns(self, names: Sequence[str] | None = None) -> dict[str, Column]:
        """The named fields (all without names) as columns; host tensors share their memory with them."""
        return {name: _to_column(self[name], self.kinds.get(name)) for name in (self.fields if names is None else names)}

    def __getitem__(self, name: str) -> Field:
        if name not in self.fields:
            raise MissingField(self.keys[0] if self.keys else "", name, -1, tuple(self.fields))
        return self.fields[name]

    def jagged(self, name: str) -> Jagged:
        """A jagged field. Raises MissingField, or FieldMismatch when it is of another kind."""
        found = self[name]
        if not isinstance(found, Jagged):
            raise FieldMismatch(name, -1, "jagged", _kind(found))
        return found

    def dense(self, name: str) -> Tensor:
        """A dense field, [N, *]. Raises MissingField, or FieldMismatch when it is of another kind."""
        found = self[name]
        if not isinstance(found, Tensor):
            raise FieldMismatch(name, -1, "dense", _kind(found))
        return found

    def objects(self, name: str) -> list[Any]:
        """A field of strings, byte strings or objects. Raises MissingField, or FieldMismatch when it is a tensor."""
        found = self[name]
        if not isinstance(found, list):
            raise FieldMismatch(name, -1, "objects", _kind(found))
        return found

    def take(self, indices: Sequence[int]) -> "Batch":
        """The rows at ``indices``, in that order. Raises IndexError for an index out of range."""
        for index in indices:
            if not 0 <= index < len(self):
                raise IndexError(f"row {index} of a batch of {len(self)}")
        fields = {name: _take(value, indices) for name, value in self.fields.items()}
        return replace(self, keys=tuple(self.keys[index] for index in indices), fields=fields)

    def select(self, names: Sequence[str]) -> "Batch":
        """Only the named fields. Raises MissingField."""
        return replace(self, fields={name: self[name] for name in names})

    def with_fields(self, fields: Mapping[str, Field]) -> "Batch":
        """These fields beside, or in place of, the present ones."""
        kinds = {name: kind for name, kind in self.kinds.items() if name not in fields}
        return Batch(self.keys, {**self.fields, **fields}, kinds)


def tensor_of(array: NDArray[Any], dtype: str) -> Tensor:
    """A host tensor over ``array``, same shape; copied only where torch could not safely share the memory."""
    if not (array.flags.writeable and array.flags.aligned):
        array = array.copy()
    tensor = torch.from_numpy(array)
    return tensor.view(torch.bfloat16) if dtype == "bfloat16" else tensor


def array_of(tensor: Tensor) -> tuple[NDArray[Any], str]:
    """A host array over ``tensor`` (copied from a device) and its column dtype; bfloat16 as raw 16 bit."""
    if tensor.dtype not in _NAMES:
        raise ValueError(f"no column holds {tensor.dtype}; known are {', '.join(TORCH)}")
    host = tensor.detach().cpu().contiguous()
    name = _NAMES[tensor.dtype]
    array: NDArray[Any] = (host.view(torch.uint16) if name == "bfloat16" else host).numpy()
    return array, name


def _from_column(column: Column) -> Field:
    if column.dtype in TEXT:
        return column.to_list()
    values = tensor_of(column.values, column.dtype)
    return values if column.offsets is None else Jagged(values, tensor_of(column.offsets, "int64"))


def _to_column(value: Field, kind: str | None) -> Column:
    if isinstance(value, Jagged):
        array, dtype = array_of(value.values)
        offsets: NDArray[np.int64] = value.offsets.cpu().numpy()
        return Column(dtype, array.shape[1:], array, offsets, value.rows)
    if isinstance(value, Tensor):
        return Column.dense(*array_of(value))
    if kind == "str" or (kind is None and all(isinstance(item, str) for item in value)):
        return Column.strings(value)
    if kind == "bytes" or (kind is None and all(isinstance(item, bytes) for item in value)):
        return Column.blobs(value)
    return Column.objects(value)


def _take(value: Field, indices: Sequence[int]) -> Field:
    if isinstance(value, Jagged):
        return value.take(indices)
    if isinstance(value, Tensor):
        return value[torch.as_tensor(indices, dtype=torch.int64, device=value.device)]
    return [value[index] for index in indices]


def _kind(value: Field) -> str:
    return "jagged" if isinstance(value, Jagged) else "dense" if isinstance(value, Tensor) else "objects"
