"""What one of two ranks gathers; run in a process of its own. Exits with an assertion's traceback when it is wrong."""

import sys
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Replicate, Shard, distribute_tensor

from asyncrl.errors import WeightSyncError
from asyncrl.weight_sync.digest import digest
from asyncrl.weight_sync.in_place import InPlaceSync, gather_flat

SHAPES = [(5, 3), (1,), (2,), (7, 2, 3), (1, 9), (4, 4)]


class Tied(nn.Module):
    """A module whose two names are one parameter, beside odd shapes and a scalar-wide norm."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(4)
        self.embed, self.head = nn.Embedding(17, 6), nn.Linear(6, 17, bias=False)
        self.inner = nn.Linear(6, 5)
        self.norm = nn.LayerNorm(1)
        self.head.weight = self.embed.weight


def assert_same(found: list[tuple[str, Tensor]], expected: list[tuple[str, Tensor]]) -> None:
    assert [name for name, _ in found] == [name for name, _ in expected]
    for (name, value), (_, whole) in zip(found, expected, strict=True):
        assert value.dtype == whole.dtype, name
        assert value.shape == whole.shape, name
        assert torch.equal(value, whole), name
    assert digest(found) == digest(expected)


def count_collectives(action: Callable[[], Any]) -> int:
    calls = 0
    original = dist.all_gather_single

    def counted(*args: Any, **kwargs: Any) -> Any:
        nonlocal calls
        calls += 1
        return original(*args, **kwargs)

    dist.all_gather_single = counted
    action()
    dist.all_gather_single = original
    return calls


class Receiver:
    """Holds what it is given, or something else."""

    def __init__(self, slip: float = 0.0) -> None:
        self.slip, self.version = slip, -1

    def load(self, version: int, weights: Any) -> str:
        self.version = version
        return digest((name, weight + self.slip) for name, weight in weights)


def main(store: str, rank: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=int(rank), world_size=2)
    mesh = init_device_mesh("cpu", (2,))
    torch.manual_seed(0)
    whole = [(f"w{at}", torch.randn(shape).to(torch.bfloat16 if at % 2 else torch.float32)) for at, shape in enumerate(SHAPES)]
    whole.append(("transposed", torch.randn(3, 5).t()))
    cut: list[tuple[str, Tensor]] = [(name, distribute_tensor(tensor, mesh, [Shard(0)])) for name, tensor in whole]
    whole += [("plain", torch.randn(3)), ("copied", torch.randn(2, 2))]
    cut += [("plain", whole[-2][1]), ("copied", distribute_tensor(whole[-1][1], mesh, [Replicate()]))]
    assert_same(gather_flat(cut), whole)
    assert count_collectives(lambda: gather_flat(cut)) == 2
    assert count_collectives(lambda: gather_flat(cut, dtype=torch.bfloat16)) == 1
    assert_same(gather_flat(cut, dtype=torch.bfloat16), [(name, tensor.bfloat16()) for name, tensor in whole])

    expected = [(name, parameter.detach().clone()) for name, parameter in Tied().named_parameters()]
    model = Tied()
    fully_shard(model.inner, mesh=mesh)
    fully_shard(model, mesh=mesh)
    named = list(model.named_parameters())
    assert_same(gather_flat(named), expected)
    receiver = Receiver()
    assert InPlaceSync(receiver).publish(3, named) == digest(expected)
    assert receiver.version == 3
    for wrong in (
        lambda: InPlaceSync(Receiver(1.0)).publish(4, named),
        lambda: gather_flat([("w", distribute_tensor(torch.zeros(4, 4), mesh, [Shard(1)]))]),
    ):
        try:
            wrong()
        except WeightSyncError:
            continue
        raise AssertionError("nothing was raised")
    dist.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])
