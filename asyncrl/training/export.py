"""Weights on disk as safetensors, for transformers and everything that reads its folders."""

from collections.abc import Iterable
from pathlib import Path

from safetensors.torch import save_file
from torch import Tensor


def save_weights(weights: Iterable[tuple[str, Tensor]], file: Path) -> None:
    """Write whole tensors under their names. A file of this name appears only when it is complete."""
    partial = file.with_suffix(".partial")
    save_file({name: tensor.detach().to("cpu", copy=True).contiguous() for name, tensor in weights}, partial, metadata={"format": "pt"})
    partial.replace(file)
