"""What one rank of a group does with an engine. Run by ``run_group`` in processes of its own, or called for one rank.

Every case returns tensors; rank 0 writes those that are whole, every rank its metrics.
"""

import copy
import json
import sys
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from safetensors.torch import save_file
from torch import Tensor
from torch.distributed.tensor import DTensor

from asyncrl.algorithms.aggregation import Denominators
from asyncrl.algorithms.value_loss import value_loss
from asyncrl.metrics import Metrics, Sum, scalars
from asyncrl.tensors.batch import Batch
from asyncrl.training.anchor import Anchor
from asyncrl.training.fsdp import FSDPEngine
from asyncrl.training.fsdp_values import FSDPValueEngine
from asyncrl.training.microbatch import MicroBatching
from asyncrl.training.model import ModelConfig
from asyncrl.training.optimizer import OptimizerConfig
from asyncrl.training.sharded import CRITIC, load_engine, save_engine, writers
from tests.unit.training.tiny_rows import COLUMNS, SCALE, TEMPERATURE, joined, objective, padding_rows, uneven_rows

MICRO = {
    "one": MicroBatching(rows=1),
    "three": MicroBatching(rows=3),
    "all": MicroBatching(),
    "tokens": MicroBatching(max_tokens=20),
    "packed-one": MicroBatching(rows=1, packed=True),
    "packed-all": MicroBatching(packed=True),
    "packed-tokens": MicroBatching(max_tokens=20, packed=True),
}
Result = tuple[dict[str, Tensor], dict[str, float]]


def engine_of(folder: Path, name: str = "SGD", **model: Any) -> FSDPEngine:
    config = OptimizerConfig(optimizer=name, lr=0.5 if name == "SGD" else 1e-2, weight_decay=0.0, clip_grad=0.7)
    return FSDPEngine(ModelConfig(path=str(folder), **model), config if model.get("trainable", True) else None)


def share(rows: Batch) -> Batch:
    """This rank's rows: every world-size-th, filled up with padding rows."""
    rank, world = dist.get_rank(), dist.get_world_size()
    mine = rows.take(range(rank, len(rows), world))
    missing = -(-len(rows) // world) - len(mine)
    return joined(mine, padding_rows(missing)) if missing else mine


def weights(engine: FSDPEngine | FSDPValueEngine) -> dict[str, Tensor]:
    return {
        name: (value.full_tensor() if isinstance(value, DTensor) else value).detach().clone() for name, value in engine.named_parameters()
    }


def train(engine: FSDPEngine, rows: Batch, micro: MicroBatching, goal: Any = objective) -> Metrics:
    return engine.train_mini_batch(rows, goal, temperature=TEMPERATURE, micro=micro, columns=COLUMNS, scale=SCALE, entropy=True)


def trained(folder: Path, micro: str, rows: Batch, name: str = "SGD", **model: Any) -> Result:
    """Two optimizer steps; the metrics are those of the first."""
    engine = engine_of(folder, name, **model)
    first = scalars(train(engine, rows, MICRO[micro]))
    train(engine, rows, MICRO[micro])
    return weights(engine), first


def trains(micro: str, name: str = "SGD", **model: Any) -> Callable[[Path], Result]:
    return lambda folder: trained(folder, micro, share(uneven_rows()), name, **model)


def evaluated(folder: Path, micro: str, **model: Any) -> Result:
    """Every rank evaluates all rows, and again after a change of the weights."""
    engine, rows = engine_of(folder, **model), uneven_rows()
    marks: list[None] = []
    out = engine.evaluate(
        rows, temperature=TEMPERATURE, micro=MICRO[micro], entropy=True, sum_pi_squared=True, progress=lambda: marks.append(None)
    )
    with torch.no_grad():
        for _, value in engine.named_parameters():
            value.mul_(0.5)
    halved = engine.evaluate(rows, temperature=TEMPERATURE, micro=MICRO[micro])
    tensors = {name: value.values for name, value in out.items()} | {"halved": halved["log_probs"].values}
    return tensors, {"marks": float(len(marks))}


def poisoned(log_probs: Tensor, entropy: Tensor | None, fields: Mapping[str, Tensor], denominators: Denominators) -> tuple[Tensor, Metrics]:
    """A loss that is not a number on the first rank."""
    loss, metrics = objective(log_probs, entropy, fields, denominators)
    return (loss * torch.nan if dist.get_rank() == 0 else loss), metrics


def skipped_non_finite(folder: Path) -> Result:
    """A bad step, then a good one: the good one is as if the bad had not been."""
    engine, rows = engine_of(folder, "AdamW"), share(uneven_rows())
    before = weights(engine)
    metrics = train(engine, rows, MICRO["three"], poisoned)
    unchanged = all(torch.equal(before[name], value) for name, value in weights(engine).items())
    train(engine, rows, MICRO["three"])
    return weights(engine), scalars(metrics) | {"unchanged": float(unchanged)}


def skipped_empty(folder: Path) -> Result:
    engine, rows = engine_of(folder), share(padding_rows(2))
    before = weights(engine)
    metrics = scalars(train(engine, rows, MICRO["all"]))
    return {}, metrics | {"unchanged": float(all(torch.equal(before[name], value) for name, value in weights(engine).items()))}


def all_on_first_rank(folder: Path) -> Result:
    """The other ranks have no row at all."""
    rows = uneven_rows()
    return trained(folder, "three", rows if dist.get_rank() == 0 else rows.take([]))


def restored(folder: Path) -> Result:
    """Back to a state, then the step that came after it."""
    engine, rows = engine_of(folder, "AdamW"), share(uneven_rows())
    train(engine, rows, MICRO["all"])
    engine.scheduler_step()
    state = copy.deepcopy(engine.state())
    train(engine, rows, MICRO["all"])
    expected = weights(engine)
    engine.scheduler_step()
    train(engine, rows, MICRO["all"])
    engine.load_state(state)
    train(engine, rows, MICRO["all"])
    return weights(engine), {"same": float(all(torch.equal(expected[name], value) for name, value in weights(engine).items()))}


def no_answer_tokens(folder: Path) -> Result:
    """A micro-batch whose only row has an empty response still takes part in the collectives."""
    rows = uneven_rows().take([2, 3])
    metrics = train(engine_of(folder), rows, MICRO["packed-one"]) | train(engine_of(folder), rows, MICRO["one"])
    return {}, scalars(metrics | {"done": Sum(1.0)})


def critic_of(folder: Path, **model: Any) -> FSDPValueEngine:
    config = OptimizerConfig(optimizer="SGD", lr=0.5, weight_decay=0.0, clip_grad=0.7)
    return FSDPValueEngine(ModelConfig(path=str(folder), **model), config, seed=5)


def value_objective(values: Tensor, fields: Mapping[str, Tensor], denominators: Denominators) -> tuple[Tensor, Metrics]:
    before, returns, mask = (fields[name] for name in ("values", "returns", "response_mask"))
    return value_loss(values, before, returns, mask, denominators, cliprange_value=0.3)


def train_critic(engine: FSDPValueEngine, rows: Batch, micro: str) -> Metrics:
    return engine.train_mini_batch(rows, value_objective, micro=MICRO[micro], columns=("values", "returns"), scale=SCALE)


def critic(folder: Path, micro: str, **model: Any) -> Result:
    """Values of all rows, then two optimizer steps over this rank's; the metrics are those of the first."""
    engine = critic_of(folder, **model)
    before, start = engine.evaluate(uneven_rows(), micro=MICRO[micro]), weights(engine)
    first = scalars(train_critic(engine, share(uneven_rows()), micro))
    train_critic(engine, share(uneven_rows()), micro)
    head = {f"start.{name}": value for name, value in start.items() if name.startswith("score.")}
    return {**weights(engine), **head, "values": before.values}, first


def critic_on_first_rank(folder: Path) -> Result:
    """The other ranks have no row at all."""
    engine, rows = critic_of(folder), uneven_rows()
    before, start = engine.evaluate(rows, micro=MICRO["three"]), weights(engine)
    mine = rows if dist.get_rank() == 0 else rows.take([])
    first = scalars(train_critic(engine, mine, "three"))
    train_critic(engine, mine, "three")
    return {**weights(engine), **{f"start.{name}": value for name, value in start.items()}, "values": before.values}, first


def restored_critic(folder: Path) -> Result:
    """Back to a state, also of the head, which is shorter than the number of ranks; then the step that came after it."""
    config = OptimizerConfig(lr=1e-2)
    engine, rows = FSDPValueEngine(ModelConfig(path=str(folder)), config, seed=5), share(uneven_rows())
    train_critic(engine, rows, "all")
    engine.scheduler_step()
    part = folder.parent / f"critic-{dist.get_world_size()}"
    saving = save_engine(engine, str(part), CRITIC, writers())
    # What is trained while it is written is not in it.
    train_critic(engine, rows, "all")
    saving.written.result(30.0)
    expected = weights(engine)
    again = FSDPValueEngine(ModelConfig(path=str(folder)), config, seed=6)
    load_engine(again, str(part), CRITIC, saving.moves)
    train_critic(again, rows, "all")
    return {}, {"same": float(all(torch.equal(expected[name], value) for name, value in weights(again).items()))}


def anchored(folder: Path, **model: Any) -> Result:
    """Log-probs of the start, kept while two steps are trained; the second step must not notice."""
    engine, rows = engine_of(folder, "AdamW", **model), share(uneven_rows())

    def log_probs() -> Tensor:
        return engine.evaluate(uneven_rows(), temperature=TEMPERATURE, micro=MICRO["three"])["log_probs"].values

    anchor = Anchor(engine.named_parameters())
    start = log_probs()
    train(engine, rows, MICRO["three"])
    learned, before = log_probs(), weights(engine)
    with anchor.in_place():
        kept = log_probs()
    same = all(torch.equal(before[name], value) for name, value in weights(engine).items())
    train(engine, rows, MICRO["three"])
    return weights(engine), {"kept": float(torch.equal(kept, start)), "same": float(same), "moved": float((learned - start).abs().max())}


def gathered(folder: Path) -> Result:
    """Each rank has one row more than the one before, the first none."""
    rank = dist.get_rank()
    mine = torch.full((rank, 2), float(rank), dtype=torch.float64)
    return {"all": engine_of(folder).gather(mine)}, {}


CASES: dict[str, Callable[[Path], Result]] = {
    **{f"train-{micro}": trains(micro) for micro in MICRO},
    **{f"evaluate-{micro}": partial(evaluated, micro=micro) for micro in MICRO},
    "train-adamw": trains("three", "AdamW"),
    "train-checkpointing": trains("three", enable_gradient_checkpointing=True),
    "train-gathered": trains("three", reshard_after_forward=False),
    "evaluate-gathered": partial(evaluated, micro="three", reshard_after_forward=False),
    "evaluate-frozen": partial(evaluated, micro="all", trainable=False),
    "skipped-non-finite": skipped_non_finite,
    "skipped-empty": skipped_empty,
    "all-on-first-rank": all_on_first_rank,
    "restored": restored,
    "no-answer-tokens": no_answer_tokens,
    "anchored": anchored,
    "anchored-gathered": partial(anchored, reshard_after_forward=False),
    "gathered": gathered,
    **{f"critic-{micro}": partial(critic, micro=micro) for micro in ("all", "one", "tokens", "packed-tokens")},
    "critic-checkpointing": partial(critic, micro="three", enable_gradient_checkpointing=True),
    "critic-on-first-rank": critic_on_first_rank,
    "restored-critic": restored_critic,
}

# Half of them on two ranks: cuts that one rank has shown to be equal need not all be run twice.
SINGLE = {
    "anchored-gathered",
    "train-packed-one",
    "train-gathered",
    "evaluate-one",
    "evaluate-all",
    "evaluate-packed-one",
    "evaluate-packed-all",
    "evaluate-tokens",
    "critic-one",
    "critic-checkpointing",
}
GROUP_CASES = [name for name in CASES if name not in SINGLE]


def main(folder: str, rank: str, world: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=int(rank), world_size=int(world))
    numbers: dict[str, dict[str, float]] = {}
    for name in GROUP_CASES:
        tensors, numbers[name] = CASES[name](Path(folder) / "model")
        if rank == "0" and tensors:
            save_file({key: value.contiguous() for key, value in tensors.items()}, f"{folder}/{name}.safetensors")
    (Path(folder) / f"{rank}.json").write_text(json.dumps(numbers))
    dist.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])
