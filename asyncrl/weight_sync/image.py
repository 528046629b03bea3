"""One version of the weights as a single run of bytes: what travels in buckets, and the list of what lies where in it.

A bucket is a slice of the run, so a tensor may lie in several of them, and several tensors in one.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import msgspec
import torch
from torch import Tensor

from asyncrl.errors import WeightSyncError
from asyncrl.weight_sync.digest import digest

ALIGNMENT = 16
"""Every tensor begins at a multiple of this, so that its bytes can be read as its own type where they are."""

DTYPES = {
    str(dtype).removeprefix("torch."): dtype
    for dtype in (
        torch.float64, torch.float32, torch.bfloat16, torch.float16, torch.float8_e4m3fn, torch.float8_e5m2,
        torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8,
    )
}  # fmt: skip
"""The types that travel, by name."""


class Piece(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A tensor in the run: its bytes begin at ``offset``."""

    name: str
    dtype: str
    shape: list[int]
    offset: int

    @property
    def size(self) -> int:
        """Its bytes."""
        return torch.Size(self.shape).numel() * DTYPES[self.dtype].itemsize


class Manifest(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What a receiver is told before the bytes come: ``size`` bytes in buckets of ``bucket``, the last one shorter.

    ``digest`` is that of all tensors with their names.
    """

    version: int
    pieces: list[Piece]
    size: int
    bucket: int
    digest: str

    def buckets(self) -> list[slice]:
        """The slices of the run, in the order in which they travel."""
        return [slice(first, min(first + self.bucket, self.size)) for first in range(0, self.size, self.bucket)]

    def check(self) -> None:
        """Raise WeightSyncError for pieces that overlap, leave the run, have no known type or share a name."""
        end, names = 0, set()
        for piece in self.pieces:
            if piece.dtype not in DTYPES or any(length < 0 for length in piece.shape):
                raise WeightSyncError(f"{piece.name} is said to be {piece.dtype} of shape {piece.shape}; allowed: {', '.join(DTYPES)}")
            if piece.name in names or piece.offset < end or piece.offset % ALIGNMENT:
                raise WeightSyncError(f"{piece.name} at byte {piece.offset} comes twice, or in the middle of another tensor")
            names.add(piece.name)
            end = piece.offset + piece.size
        if end > self.size or self.bucket < 1 or self.version < 0:
            raise WeightSyncError(f"version {self.version}: tensors of {end} bytes in a run of {self.size}, in buckets of {self.bucket}")

    def tensors(self, run: Tensor) -> list[tuple[str, Tensor]]:
        """Every tensor of the run, a uint8 tensor of ``size`` bytes; they share its memory."""
        return [
            (piece.name, run[piece.offset : piece.offset + piece.size].view(DTYPES[piece.dtype]).view(piece.shape)) for piece in self.pieces
        ]


@dataclass(frozen=True, slots=True, eq=False)
class Image:
    """A manifest and its run of bytes, in host memory."""

    manifest: Manifest
    run: Tensor


def plan(version: int, weights: Sequence[tuple[str, Tensor]], bucket: int, of: str = "") -> Manifest:
    """The manifest of ``weights``, whose digest is ``of``. Raises WeightSyncError for a type that cannot travel."""
    pieces, end = [], 0
    for name, tensor in weights:
        dtype = str(tensor.dtype).removeprefix("torch.")
        if dtype not in DTYPES:
            raise WeightSyncError(f"{name} is {dtype}; allowed: {', '.join(DTYPES)}")
        piece = Piece(name, dtype, list(tensor.shape), -(-end // ALIGNMENT) * ALIGNMENT)
        pieces.append(piece)
        end = piece.offset + piece.size
    return Manifest(version=version, pieces=pieces, size=end, bucket=bucket, digest=of)


@torch.no_grad()
def pack(version: int, weights: Iterable[tuple[str, Tensor]], bucket: int, memory: Tensor | None = None) -> Image:
    """Copy whole ``weights`` into one run of host memory: into ``memory`` where it has the right size, else into new one."""
    known = list(weights)
    manifest = plan(version, known, bucket, digest(known))
    run = staging(manifest.size, memory)
    for (_, tensor), (_, place) in zip(known, manifest.tensors(run), strict=True):
        place.copy_(tensor)
    return Image(manifest, run)


def staging(size: int, memory: Tensor | None = None) -> Tensor:
    """A uint8 tensor of ``size`` bytes in host memory, pinned where there is a GPU: ``memory`` again if it fits."""
    if memory is not None and len(memory) == size:
        return memory
    return torch.empty(size, dtype=torch.uint8, pin_memory=torch.cuda.is_available())
