"""The frozen reference of one rank."""

from asyncrl.runtime.actor import endpoint
from asyncrl.runtime.curve import CONTROLLER
from asyncrl.tensors.batch import Batch
from asyncrl.training.engine import Progress, TrainEngine
from asyncrl.training.microbatch import MicroBatching
from asyncrl.workers.fields import REF_LOG_PROB
from asyncrl.workers.meta import BatchMeta
from asyncrl.workers.rank import Device, QueueWorker


class ReferenceWorker(QueueWorker):
    """Holds this rank's shard of the reference model; its weights never change."""

    def __init__(self, device: Device, engine: TrainEngine, temperature: float, micro: MicroBatching) -> None:
        super().__init__(device)
        self.engine, self.temperature, self.micro = engine, temperature, micro

    @endpoint(collective=True, roles=(CONTROLLER,))
    async def ref_log_prob(self, rows: BatchMeta) -> None:
        """Write ``ref_log_prob``: log-probs of the responses under the reference."""
        batch = await self.fetch(rows, REF_LOG_PROB)
        result = await self.device.thread.run(self._evaluate, batch, self.context.progress)
        await self.put(rows, REF_LOG_PROB, result)

    def _evaluate(self, batch: Batch, progress: Progress) -> Batch:
        output = self.engine.evaluate(batch, temperature=self.temperature, micro=self.micro, progress=progress)
        return Batch(batch.keys, {"ref_log_prob": output["log_probs"]})
