"""What one rank holds: the device thread, the models on it, and the way to the queue."""

from dataclasses import dataclass

import torch

from asyncrl.errors import ActorError
from asyncrl.runtime.actor import Actor, endpoint
from asyncrl.runtime.curve import CONTROLLER
from asyncrl.runtime.messages import ActorAddress
from asyncrl.tensors.batch import Batch, Field
from asyncrl.tensors.jagged import Jagged
from asyncrl.training.device_thread import DeviceRunner
from asyncrl.transfer_queue.client import TransferQueue
from asyncrl.transfer_queue.shard import QueueShard
from asyncrl.workers.fields import Stage
from asyncrl.workers.meta import BatchMeta


@dataclass(frozen=True, slots=True)
class Device:
    """Where device work and collectives run, and how rows are padded there."""

    thread: DeviceRunner
    pad_token_id: int


class QueueWorker(Actor):
    """A role on a rank that fetches its rows from the queue and puts results back under the same keys."""

    def __init__(self, device: Device) -> None:
        self.device = device
        self._queue: TransferQueue | None = None

    @endpoint(roles=(CONTROLLER,))
    async def connect(self, shards: list[ActorAddress], directory: ActorAddress | None) -> None:
        """Tell the worker where the shards are, in slot order, and who knows where they are after a restart."""
        if directory is not None and self.context.system.directory is None:
            await self.context.system.join(directory)
        self._queue = TransferQueue([self.context.system.ref(address, QueueShard) for address in shards])

    @property
    def queue(self) -> TransferQueue:
        """The queue. Raises ActorError before ``connect``."""
        if self._queue is None:
            raise ActorError(f"{self.context.name} was not connected to the queue")
        return self._queue

    async def fetch(self, rows: BatchMeta, stage: Stage) -> Batch:
        """The columns that ``stage`` reads of this rank's rows, padding rows last."""
        columns = await self.queue.kv_batch_get(rows.keys, rows.partition_id, stage.reads)
        return with_padding(Batch.from_columns(rows.keys, columns), rows.padding, self.device.pad_token_id)

    async def put(self, rows: BatchMeta, stage: Stage, results: Batch) -> None:
        """Put the declared results of this rank's rows; padding rows never reach the queue.

        A field that the stage reads and writes takes the place of what was there.
        """
        stage.check_writes(tuple(results.fields))
        real = results.take(range(len(rows.keys)))
        # Step k begins with the weights of version k - 1.
        columns, version = real.columns(stage.writes), rows.step - 1
        replaces = any(name in stage.reads for name in stage.writes)
        await self.queue.kv_batch_put(
            rows.keys, rows.partition_id, columns, overwrite=replaces, step=rows.step, version=version, computed=True
        )


def with_padding(batch: Batch, count: int, pad_token_id: int) -> Batch:
    """``batch`` and ``count`` padding rows: one token in every field, mask 0."""
    if not count:
        return batch
    fields: dict[str, Field] = {}
    for name in batch.fields:
        rows = batch.jagged(name)
        token = pad_token_id if name in ("prompts", "responses") else 0
        filler = Jagged(rows.values.new_full((count,), token), torch.arange(count + 1))
        fields[name] = Jagged.concat([rows, filler])
    return Batch((*batch.keys, *(f"pad_{number}" for number in range(count))), fields)


def mini_batch_rows(rows: BatchMeta) -> list[list[int]]:
    """For each mini-batch the positions of its rows in the batch that ``fetch`` returns, padding rows last."""
    positions: list[list[int]] = []
    key, pad = 0, len(rows.keys)
    for mini in rows.mini_batches:
        positions.append([*range(key, key + len(mini.keys)), *range(pad, pad + mini.padding)])
        key, pad = key + len(mini.keys), pad + mini.padding
    return positions
