"""The critic of one rank: values of its rows, and updates towards their returns."""

from collections.abc import Mapping

import msgspec
from torch import Tensor

from asyncrl.algorithms.aggregation import Denominators
from asyncrl.algorithms.step_metrics import value_metrics
from asyncrl.algorithms.value_loss import value_loss
from asyncrl.metrics import Metrics
from asyncrl.runtime.actor import endpoint
from asyncrl.runtime.curve import CONTROLLER
from asyncrl.tensors.batch import Batch
from asyncrl.training.engine import Progress, ValueEngine
from asyncrl.training.microbatch import MicroBatching
from asyncrl.training.sharded import CRITIC
from asyncrl.workers.fields import UPDATE_CRITIC, VALUES
from asyncrl.workers.meta import BatchMeta
from asyncrl.workers.rank import Device, mini_batch_rows
from asyncrl.workers.trained import TrainedWorker, UpdateReport

COLUMNS = ("response_mask", "values", "returns")


class CriticSettings(msgspec.Struct, frozen=True, kw_only=True):
    """What an update and a pass for values need to know."""

    cliprange_value: float
    denominator: str
    """The mask whose ones and rows a loss is divided by."""
    loss_agg_mode: str
    loss_scale_factor: float
    epochs: int
    update_micro: MicroBatching
    evaluate_micro: MicroBatching


class CriticWorker(TrainedWorker):
    """Holds this rank's shard of the critic."""

    part = CRITIC

    def __init__(self, device: Device, engine: ValueEngine, settings: CriticSettings) -> None:
        super().__init__(device, engine)
        self.engine, self.settings = engine, settings

    @endpoint(collective=True, roles=(CONTROLLER,))
    async def values(self, rows: BatchMeta) -> None:
        """Write ``values``: what the critic expects before each response token."""
        batch = await self.fetch(rows, VALUES)
        result = await self.device.thread.run(self._values, batch, self.context.progress)
        await self.put(rows, VALUES, result)

    @endpoint(collective=True, roles=(CONTROLLER,))
    async def update(self, rows: BatchMeta) -> UpdateReport:
        """Train on every mini-batch, ``ppo_epochs`` times; then move the learning rate on.

        The metrics of all rows say how well the values foresaw the returns.
        """
        stage = UPDATE_CRITIC if self.settings.denominator == "loss_mask" else UPDATE_CRITIC.without("loss_mask")
        batch = await self.fetch(rows, stage)
        metrics = await self.device.thread.run(foresight, batch.take(range(len(rows.keys))))
        by_update = await self.device.thread.run(self._update, batch, mini_batch_rows(rows), self.context.progress)
        return UpdateReport(by_update, len(rows.keys), metrics)

    def _values(self, batch: Batch, progress: Progress) -> Batch:
        values = self.engine.evaluate(batch, micro=self.settings.evaluate_micro, progress=progress)
        return Batch(batch.keys, {"values": values})

    def _update(self, batch: Batch, mini_batches: list[list[int]], progress: Progress) -> list[Metrics]:
        by_update = [
            self.engine.train_mini_batch(
                batch.take(positions),
                self._objective,
                micro=self.settings.update_micro,
                denominator=self.settings.denominator,
                columns=COLUMNS,
                scale=self.settings.loss_scale_factor,
                progress=progress,
            )
            for _ in range(self.settings.epochs)
            for positions in mini_batches
        ]
        self.engine.scheduler_step()
        return by_update

    def _objective(self, values: Tensor, fields: Mapping[str, Tensor], denominators: Denominators) -> tuple[Tensor, Metrics]:
        loss, metrics = value_loss(
            values,
            fields["values"],
            fields["returns"],
            fields["response_mask"],
            denominators,
            cliprange_value=self.settings.cliprange_value,
            loss_agg_mode=self.settings.loss_agg_mode,
        )
        return loss, metrics | {"critic/loss": metrics["critic/vf_loss"]}


def foresight(rows: Batch) -> Metrics:
    """``critic/values`` and ``critic/vf_explained_var`` of rows without padding."""
    values, returns, mask = (rows.jagged(name).values for name in ("values", "returns", "response_mask"))
    return value_metrics(values, returns, mask)
