"""``Jagged``: rows of different lengths as one packed torch tensor.

``N`` rows, ``T`` elements of all rows together, ``R`` the longest row, ``*`` trailing dimensions.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True, eq=False)
class Jagged:
    """N rows along one packed tensor. Padding exists only in what ``padded`` returns.

    values: [T, *], any dtype and device. offsets: int64 [N+1] from 0 to T, on the same device.

    >>> Jagged.from_rows([torch.tensor([1, 2]), torch.tensor([3])]).padded(0).tolist()
    [[1, 2], [3, 0]]
    """

    values: Tensor
    offsets: Tensor

    def __post_init__(self) -> None:
        if self.values.ndim == 0 or self.offsets.ndim != 1 or len(self.offsets) == 0 or self.offsets.dtype != torch.int64:
            raise ValueError(
                f"values {list(self.values.shape)} with offsets {self.offsets.dtype} {list(self.offsets.shape)} are no jagged rows"
            )

    @classmethod
    def from_rows(cls, rows: Sequence[Tensor]) -> "Jagged":
        """Pack N >= 1 tensors [length, *] of one dtype."""
        return cls(torch.cat(list(rows)), _offsets(torch.tensor([len(row) for row in rows], device=rows[0].device)))

    @classmethod
    def from_padded(cls, padded: Tensor, lengths: Tensor) -> "Jagged":
        """Pack the first ``lengths`` [N] elements of each row of ``padded`` [N, R, *]."""
        if lengths.shape != padded.shape[:1]:
            raise ValueError(f"{list(lengths.shape)} lengths for padded rows {list(padded.shape)}")
        if len(lengths) and (int(lengths.min()) < 0 or int(lengths.max()) > padded.shape[1]):
            raise ValueError(f"lengths from {int(lengths.min())} to {int(lengths.max())} in rows of {padded.shape[1]}")
        return cls(padded[_mask(lengths, padded.shape[1])], _offsets(lengths))

    @property
    def rows(self) -> int:
        """N."""
        return len(self.offsets) - 1

    @property
    def lengths(self) -> Tensor:
        """Elements of each row, int64 [N]."""
        return self.offsets.diff()

    @property
    def longest(self) -> int:
        """R, the length of the longest row; 0 for no rows."""
        return int(self.lengths.max()) if self.rows else 0

    def row(self, index: int) -> Tensor:
        """Row ``index`` as a view, [length, *]."""
        if not 0 <= index < self.rows:
            raise IndexError(f"row {index} of {self.rows}")
        return self.values[int(self.offsets[index]) : int(self.offsets[index + 1])]

    def to_rows(self) -> list[Tensor]:
        """All rows as views."""
        return list(torch.split(self.values, self.lengths.tolist()))

    def mask(self, width: int | None = None) -> Tensor:
        """bool [N, R]: which places of ``padded`` are elements; ``width`` instead of R where given."""
        return _mask(self.lengths, self.longest if width is None else width)

    def padded(self, fill: float | int | bool = 0, width: int | None = None) -> Tensor:
        """Rows to the left, ``fill`` after their ends: [N, R, *]; ``width`` >= R instead of R where given."""
        mask = self.mask(width)
        if mask.shape[1] < self.longest:
            raise ValueError(f"rows of up to {self.longest} elements do not fit a width of {mask.shape[1]}")
        padded = self.values.new_full((*mask.shape, *self.values.shape[1:]), fill)
        padded[mask] = self.values
        return padded

    def take(self, indices: Sequence[int] | Tensor) -> "Jagged":
        """The rows at ``indices``, in that order. Raises IndexError for an index out of range."""
        chosen = torch.as_tensor(indices, dtype=torch.int64, device=self.offsets.device)
        if len(chosen) and (int(chosen.min()) < 0 or int(chosen.max()) >= self.rows):
            raise IndexError(f"rows {int(chosen.min())} to {int(chosen.max())} of {self.rows}")
        lengths = self.lengths[chosen]
        offsets = _offsets(lengths)
        shift = torch.repeat_interleave(self.offsets[chosen] - offsets[:-1], lengths)
        return Jagged(self.values[shift + torch.arange(len(shift), device=shift.device)], offsets)

    @staticmethod
    def concat(parts: Sequence["Jagged"]) -> "Jagged":
        """All rows of one or more parts."""
        return Jagged(torch.cat([part.values for part in parts]), _offsets(torch.cat([part.lengths for part in parts])))

    def with_values(self, values: Tensor) -> "Jagged":
        """Other values [T, *] of the same rows."""
        if len(values) != len(self.values):
            raise ValueError(f"{len(values)} values for rows of {len(self.values)} elements together")
        return Jagged(values, self.offsets)


def _offsets(lengths: Tensor) -> Tensor:
    offsets = torch.zeros(len(lengths) + 1, dtype=torch.int64, device=lengths.device)
    torch.cumsum(lengths, 0, dtype=torch.int64, out=offsets[1:])
    return offsets


def _mask(lengths: Tensor, width: int) -> Tensor:
    return torch.arange(width, device=lengths.device) < lengths.unsqueeze(1)
