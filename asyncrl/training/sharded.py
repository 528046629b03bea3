"""A training engine's part of a checkpoint: sharded weights and optimizer, and the random state of each rank."""

import asyncio
import warnings
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from safetensors.torch import load_file, save_file
from torch import Tensor
from torch.distributed import ProcessGroup
from torch.distributed.checkpoint.api import CheckpointException

from asyncrl.errors import CheckpointError
from asyncrl.training.engine import TrainedModel
from asyncrl.training.export import save_weights
from asyncrl.training.model import ModelConfig, read_model

POLICY = "actor"
CRITIC = "critic"
"""The part of a checkpoint that holds a role's shards."""


@dataclass(frozen=True, slots=True)
class Saving:
    """A part of a checkpoint that is being written from a copy."""

    moves: int
    """How often the learning rate had moved. A number and not a tensor: it goes with the controller's state."""
    written: Future[Any]
    """Done when the last byte is written; flushed it is not."""


def writers() -> ProcessGroup:
    """A group in which ranks can agree on what to write while they train in another. Collective."""
    return cast(ProcessGroup, dist.new_group(backend="gloo"))


def save_engine(engine: TrainedModel, folder: str, part: str, group: ProcessGroup) -> Saving:
    """Copy this rank's shards, and begin to write them beside whatever comes next. Collective, on ``group`` of ``writers``.

    The random state is the rank's; whichever role is saved last writes it.
    """
    state = engine.state()
    moves = int(state.pop("schedule"))
    Path(folder).mkdir(parents=True, exist_ok=True)
    save_file(_random_state(), _random_file(folder))
    written = dcp.async_save(state, checkpoint_id=str(Path(folder) / part), process_group=group)  # type: ignore[attr-defined]
    assert isinstance(written, Future)  # a stager of its own would answer with more
    return Saving(moves, written)


async def until_written(saving: Saving) -> None:
    """Return when ``saving`` is written. Raises CheckpointError that names the ranks that could not."""
    try:
        await asyncio.wrap_future(saving.written)
    except CheckpointException as error:
        causes = "; ".join(f"rank {rank}: {cause[0]!r}" for rank, cause in sorted(error.failures.items()))
        raise CheckpointError(causes) from error


def load_engine(engine: TrainedModel, folder: str, part: str, moves: int) -> None:
    """Take over what ``save_engine`` wrote, on as many ranks as there are now. Collective.

    The folder must have been verified. A rank without a random state of its own keeps the one it has.
    """
    state: dict[str, Any] = engine.state()
    state.pop("schedule")
    dcp.load(state, checkpoint_id=str(Path(folder) / part))  # type: ignore[attr-defined]
    engine.load_state(state | {"schedule": moves})
    file = _random_file(folder)
    if file.exists():
        torch.set_rng_state(load_file(file)["cpu"])


def _random_state() -> dict[str, Tensor]:
    return {"cpu": torch.get_rng_state()}


def _random_file(folder: str) -> Path:
    return Path(folder) / f"rng_{dist.get_rank()}.safetensors"


def read_weights(folder: str, model_path: str, file: Path, *, trust_remote_code: bool) -> None:
    """Write the whole weights of a verified checkpoint into one safetensors file. Needs no process group."""
    model = read_model(ModelConfig(path=model_path, trainable=False, trust_remote_code=trust_remote_code))
    weights = {name: parameter.detach() for name, parameter in model.named_parameters()}
    with warnings.catch_warnings():
        # It says that there is no process group; that is meant.
        warnings.simplefilter("ignore", UserWarning)
        dcp.load({"model": weights}, checkpoint_id=str(Path(folder) / POLICY), no_dist=True)  # type: ignore[attr-defined]
    save_weights(weights.items(), file)
