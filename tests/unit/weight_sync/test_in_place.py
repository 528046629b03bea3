"""The flat gather over two ranks in processes of their own, and over one in this process."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch._C._distributed_c10d import FileStore
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor

from asyncrl.weight_sync.in_place import gather_flat

ROOT = Path(__file__).parents[3]


@pytest.mark.timeout(150)  # two processes that import torch, on a busy machine
def test_two_ranks_gather_the_original_with_one_collective_per_dtype(tmp_path: Path) -> None:
    environment = dict(os.environ) | {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    command = [sys.executable, "-m", "tests.unit.weight_sync.gather_suite", str(tmp_path / "store")]
    ranks = [
        subprocess.Popen([*command, str(rank)], cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        for rank in (0, 1)
    ]
    try:
        outputs = [rank.communicate(timeout=120)[0] for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
    assert [rank.returncode for rank in ranks] == [0, 0], "\n".join(outputs)


def test_one_rank_gathers_what_it_has(tmp_path: Path) -> None:
    dist.init_process_group("gloo", store=FileStore(str(tmp_path / "store"), 1), rank=0, world_size=1)
    try:
        tensor = torch.randn(5, 3)
        [(name, found)] = gather_flat([("w", distribute_tensor(tensor, init_device_mesh("cpu", (1,)), [Shard(0)]))])
        assert name == "w"
        assert torch.equal(found, tensor)
    finally:
        dist.destroy_process_group()
