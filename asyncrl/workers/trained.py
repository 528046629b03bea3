"""What the roles of a rank that learn have in common: their part of a checkpoint, and their whole weights in a file."""

from pathlib import Path

import msgspec
from torch.distributed import ProcessGroup

from asyncrl.metrics import Metrics
from asyncrl.runtime.actor import endpoint
from asyncrl.runtime.curve import CONTROLLER
from asyncrl.training.engine import TrainedModel
from asyncrl.training.export import save_weights
from asyncrl.training.sharded import Saving, load_engine, save_engine, until_written, writers
from asyncrl.weight_sync.in_place import gather_flat
from asyncrl.workers.rank import Device, QueueWorker


class UpdateReport(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """This rank's part of a local update: metrics of each optimizer step, those of all its rows, and how many it trained."""

    by_update: list[Metrics]
    rows: int
    metrics: Metrics = {}


class TrainedWorker(QueueWorker):
    """Holds this rank's shard of a model that learns; every method that gathers weights is collective."""

    part: str
    """Its folder in a checkpoint."""

    def __init__(self, device: Device, model: TrainedModel) -> None:
        super().__init__(device)
        self._model = model
        self._writers: ProcessGroup | None = None
        self._saving: Saving | None = None

    @endpoint(collective=True, roles=(CONTROLLER,))
    async def save(self, folder: str) -> int:
        """Copy this rank's part of a checkpoint and begin to write it; return how often the learning rate has moved."""
        self._saving = await self.device.thread.run(self._begin_save, folder)
        return self._saving.moves

    @endpoint(roles=(CONTROLLER,))
    async def saved(self) -> None:
        """Return when what ``save`` has begun is written. Raises CheckpointError when it cannot be."""
        if self._saving is not None:
            await until_written(self._saving)
            self._saving = None

    @endpoint(collective=True, roles=(CONTROLLER,))
    async def restore(self, folder: str, moves: int) -> None:
        """Read this rank's part of a verified checkpoint."""
        await self.device.thread.run(load_engine, self._model, folder, self.part, moves)

    @endpoint(collective=True, roles=(CONTROLLER,))
    async def export(self, file: str, write: bool) -> None:
        """Gather the whole weights; the rank that is told to ``write`` puts them into a safetensors file."""
        await self.device.thread.run(self._export, Path(file) if write else None)

    def _begin_save(self, folder: str) -> Saving:
        if self._writers is None:
            self._writers = writers()
        return save_engine(self._model, folder, self.part, self._writers)

    def _export(self, file: Path | None) -> None:
        weights = gather_flat(self._model.named_parameters())
        if file is not None:
            save_weights(weights, file)
