"""One group of one rank in this process, one of two ranks in processes of their own; each runs its cases once."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from safetensors.torch import load_file
from torch import Tensor, nn
from torch._C._distributed_c10d import FileStore
from transformers import Qwen3ForCausalLM

from tests.unit.training.tiny_rows import write_model

ROOT = Path(__file__).parents[3]


class GroupResults:
    """What the two ranks found: tensors of rank 0, numbers of each."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.numbers: list[dict[str, dict[str, float]]] = [json.loads((folder / f"{rank}.json").read_text()) for rank in (0, 1)]

    def tensors(self, case: str) -> dict[str, Tensor]:
        return load_file(self._folder / f"{case}.safetensors")

    def total(self, case: str, metric: str) -> float:
        return sum(numbers[case][metric] for numbers in self.numbers)


@pytest.fixture(scope="session")
def model_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("training") / "model"
    write_model(folder)
    return folder


@pytest.fixture
def plain(model_folder: Path) -> nn.Module:
    loaded: nn.Module = Qwen3ForCausalLM.from_pretrained(model_folder, dtype=torch.float32)
    return loaded


@pytest.fixture(scope="session")
def two_ranks(model_folder: Path) -> GroupResults:
    folder = model_folder.parent
    environment = dict(os.environ) | {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    command = [sys.executable, "-m", "tests.unit.training.engine_suite", str(folder)]
    ranks = [
        subprocess.Popen([*command, str(rank), "2"], cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        for rank in (0, 1)
    ]
    try:
        outputs = [rank.communicate(timeout=120)[0] for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
    assert [rank.returncode for rank in ranks] == [0, 0], "\n".join(outputs)
    return GroupResults(folder)


@pytest.fixture(scope="module")
def one_rank(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    # The case of two ranks runs on one thread each; more threads than free cores would cost this one far more time.
    torch.set_num_threads(1)
    store = FileStore(str(tmp_path_factory.mktemp("group") / "store"), 1)
    dist.init_process_group("gloo", store=store, rank=0, world_size=1)
    yield
    dist.destroy_process_group()
