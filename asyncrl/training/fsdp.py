"""The training engine of a language model over FSDP2."""

from collections.abc import Mapping, Sequence
from typing import cast

from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh

from asyncrl.algorithms.aggregation import Denominators
from asyncrl.algorithms.logprobs import entropy_from_logits, log_probs_from_logits, sum_pi_squared_from_logits
from asyncrl.metrics import Metrics
from asyncrl.tensors.batch import Batch
from asyncrl.tensors.jagged import Jagged
from asyncrl.training.engine import Objective, Progress
from asyncrl.training.microbatch import MicroBatching, ModelInput
from asyncrl.training.model import ModelConfig, read_model
from asyncrl.training.optimizer import OptimizerConfig
from asyncrl.training.sharded_model import ShardedModel, StepNames

NAMES = StepNames.of("actor", "training")


class FSDPEngine(ShardedModel):
    """A TrainEngine. The process group must be up; construct it and call it on the device thread."""

    def __init__(self, config: ModelConfig, optimizer: OptimizerConfig | None = None, mesh: DeviceMesh | None = None) -> None:
        """Read and shard the model. Collective. ``optimizer`` goes with a trainable model, and only with one."""
        if (optimizer is not None) != config.trainable:
            raise ValueError("a trainable model needs an optimizer, a frozen one has none")
        model = read_model(config)
        head = cast(nn.Module, model.get_output_embeddings())  # type: ignore[operator]
        super().__init__(model, head, config, optimizer, mesh, NAMES)

    def evaluate(
        self,
        rows: Batch,
        *,
        temperature: float,
        micro: MicroBatching,
        entropy: bool = False,
        sum_pi_squared: bool = False,
        progress: Progress | None = None,
    ) -> dict[str, Jagged]:
        wanted = {"log_probs": True, "entropy": entropy, "sum_pi_squared": sum_pi_squared}

        def read(logits: Tensor, laid: ModelInput) -> dict[str, Tensor]:
            values = {"log_probs": log_probs_from_logits(logits, laid.targets, temperature)}
            if entropy:
                values["entropy"] = entropy_from_logits(logits, temperature)
            if sum_pi_squared:
                values["sum_pi_squared"] = sum_pi_squared_from_logits(logits, temperature)
            return values

        return self._evaluate(rows, [name for name, asked in wanted.items() if asked], read, micro, progress)

    def train_mini_batch(
        self,
        rows: Batch,
        objective: Objective,
        *,
        temperature: float,
        micro: MicroBatching,
        columns: Sequence[str],
        scale: float,
        denominator: str = "response_mask",
        entropy: bool = False,
        progress: Progress | None = None,
    ) -> Metrics:
        def loss_of(logits: Tensor, laid: ModelInput, fields: Mapping[str, Tensor], denominators: Denominators) -> tuple[Tensor, Metrics]:
            log_probs = log_probs_from_logits(logits, laid.targets, temperature)
            spread = laid.padded(entropy_from_logits(logits, temperature)) if entropy else None
            return objective(laid.padded(log_probs), spread, fields, denominators)

        return self._train(rows, columns, loss_of, micro, scale, denominator, progress)
