"""The training engine of a critic over FSDP2: a backbone and a head of one output, the value of what comes after a token."""

from collections.abc import Mapping, Sequence

from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh

from asyncrl.algorithms.aggregation import Denominators
from asyncrl.metrics import Metrics
from asyncrl.tensors.batch import Batch
from asyncrl.tensors.jagged import Jagged
from asyncrl.training.engine import Progress, ValueObjective
from asyncrl.training.microbatch import MicroBatching, ModelInput
from asyncrl.training.model import ModelConfig
from asyncrl.training.optimizer import OptimizerConfig
from asyncrl.training.sharded_model import ShardedModel, StepNames
from asyncrl.training.value_model import read_value_model

NAMES = StepNames.of("critic", "training/critic")


class FSDPValueEngine(ShardedModel):
    """A ValueEngine. The process group must be up; construct it and call it on the device thread."""

    def __init__(self, config: ModelConfig, optimizer: OptimizerConfig, seed: int, mesh: DeviceMesh | None = None) -> None:
        """Read and shard the model; its head is drawn from ``seed``, alike on all ranks. Collective."""
        model, head = read_value_model(config, seed)
        super().__init__(model, head, config, optimizer, mesh, NAMES, head_in_full_precision=True)

    def evaluate(self, rows: Batch, *, micro: MicroBatching, progress: Progress | None = None) -> Jagged:
        def read(output: Tensor, laid: ModelInput) -> dict[str, Tensor]:
            return {"values": output.squeeze(-1)}

        return self._evaluate(rows, ["values"], read, micro, progress)["values"]

    def train_mini_batch(
        self,
        rows: Batch,
        objective: ValueObjective,
        *,
        micro: MicroBatching,
        columns: Sequence[str],
        scale: float,
        denominator: str = "response_mask",
        progress: Progress | None = None,
    ) -> Metrics:
        def loss_of(output: Tensor, laid: ModelInput, fields: Mapping[str, Tensor], denominators: Denominators) -> tuple[Tensor, Metrics]:
            return objective(laid.padded(output.squeeze(-1)), fields, denominators)

        return self._train(rows, columns, loss_of, micro, scale, denominator, progress)
