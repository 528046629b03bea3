"""What a checkpoint holds, read without a process group."""

import warnings
from pathlib import Path

import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.filesystem import FileSystemReader
from torch.distributed.checkpoint.metadata import TensorStorageMetadata


def saved_tensors(folder: Path) -> dict[str, torch.Tensor]:
    """Every tensor of one role's part of a checkpoint."""
    reader = FileSystemReader(folder)
    tensors = {
        name: torch.empty(entry.size, dtype=entry.properties.dtype)
        for name, entry in reader.read_metadata().state_dict_metadata.items()
        if isinstance(entry, TensorStorageMetadata)
    }
    with warnings.catch_warnings():
        # It says that there is no process group; that is meant.
        warnings.simplefilter("ignore", UserWarning)
        dcp.load(tensors, storage_reader=reader, no_dist=True)  # type: ignore[attr-defined]
    return tensors
