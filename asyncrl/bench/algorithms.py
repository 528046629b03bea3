"""``asyncrl bench algorithms``: the mathematics of a large batch, against the time its bytes need at least.

grpo: GRPO over 65,536 rows of 1,024 tokens in float32: token rewards to scores, groups of 8, advantages on every trainable
token. vanilla_loss: the clipped loss of the same batch, forward and backward with its metrics, in micro-batches of 256 rows as
training does it.

Reference of both: a floor, the bytes that must be read or written at least once (inputs, outputs, gradient; no temporary)
over the bandwidth of a plain copy of 256 MiB, measured in the same round. The batch takes 1.4 GiB, everything together less than
3 GiB. One thread on both sides.
"""

from dataclasses import dataclass

from asyncrl.bench.report import Report
from asyncrl.bench.rounds import Pair, Progress, interleaved


@dataclass(frozen=True, slots=True)
class AlgorithmsWork:
    """How much is done."""

    rounds: int = 3
    rows: int = 1 << 16
    tokens: int = 1 << 10
    group: int = 8
    micro_rows: int = 1 << 8
    copied_bytes: int = 1 << 28


async def algorithms(progress: Progress, work: AlgorithmsWork | None = None) -> Report:
    """Measure both figures."""
    from asyncrl.bench.tensor_work import TensorWork, one_thread  # the other benchmarks do without torch

    with one_thread():
        tensors = TensorWork(work or AlgorithmsWork())
        pairs = {
            "grpo": Pair("ms", tensors.grpo, tensors.grpo_floor),
            "vanilla_loss": Pair("ms", tensors.vanilla_loss, tensors.vanilla_loss_floor),
        }
        return await interleaved("algorithms", pairs, tensors.work.rounds, progress)
