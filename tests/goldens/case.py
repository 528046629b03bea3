"""Golden cases: where they lie, how they are read, and how an answer is held against one."""

import json
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

FOLDER = Path(os.environ.get("ASYNCRL_GOLDENS") or Path(__file__).parent / "data")
FILES = (
    "advantages",
    "multi_output_advantage",
    "policy_loss",
    "agg_loss",
    "kl",
    "functional",
    "rollout_correction",
    "seqlen_balancing",
    "validation_metrics",
    "data_metrics",
    "trainer_pipeline",
    "trl_grpo",
)


class NotCovered(Exception):
    """The function that a case is about does not exist here yet."""


@dataclass(frozen=True)
class Case:
    """One recorded call."""

    file: str
    name: str
    function: str
    dtype: torch.dtype
    inputs: dict[str, Any]
    params: dict[str, Any]
    outputs: dict[str, Any]
    rtol: float
    atol: float
    cautioned: tuple[str, ...]
    """Paths of outputs that record a defect; ``*`` is all of them."""
    why: str

    def tensor(self, name: str, dtype: torch.dtype | None = None) -> Tensor:
        """An input as a tensor in the dtype of the case."""
        return tensor(self.inputs[name], dtype or self.dtype)


Answer = Mapping[str, Any]
"""Outputs by name: tensors, numbers, lists or further mappings."""
Adapter = Callable[[Case], Answer]
"""Calls the function of a case; raises NotCovered when some of it is missing, ValueError when it refuses the input."""
Check = Callable[[Case, Answer], None]
"""For functions of which another answer than the recorded one may be as good."""


def tensor(values: Any, dtype: torch.dtype) -> Tensor:
    """Nested lists, in which non-finite numbers are strings, as a tensor."""
    return torch.from_numpy(np.array(values, dtype=np.float64)).to(dtype)


def read(file: str) -> list[Case]:
    """All cases of a file; none when the folder has no such file."""
    path = FOLDER / f"{file}.json"
    if not path.exists():
        return []
    return [_case(file, raw) for raw in json.loads(path.read_text())["cases"]]


def _case(file: str, raw: dict[str, Any]) -> Case:
    caution = raw.get("caution") or {"outputs": [], "why": ""}
    return Case(
        file,
        raw["name"],
        raw["function"],
        {"float64": torch.float64, "float32": torch.float32}[raw["dtype"]],
        raw["inputs"],
        raw["params"],
        raw["outputs"],
        raw["tolerance"]["rtol"],
        raw["tolerance"]["atol"],
        tuple(caution["outputs"]),
        caution["why"],
    )


def compare(case: Case, answer: Answer) -> list[str]:
    """Hold an answer against the recorded outputs; return the paths that were compared.

    An output that the answer does not name, or that the case cautions against, is left out.
    """
    compared = []
    for path, ours, golden in _pairs("", answer, case.outputs):
        if "*" in case.cautioned or any(path == name or path.startswith(f"{name}.") for name in case.cautioned):
            continue
        left, right = np.asarray(_plain(ours), dtype=np.float64), np.asarray(golden, dtype=np.float64)
        assert left.shape == right.shape, f"{case.name}: {path} has shape {left.shape}, recorded {right.shape}"
        np.testing.assert_allclose(left, right, rtol=case.rtol, atol=case.atol, equal_nan=True, err_msg=f"{case.name}: {path}")
        compared.append(path)
    return compared


def _pairs(path: str, ours: Any, golden: Any) -> Iterator[tuple[str, Any, Any]]:
    if isinstance(ours, Mapping):
        for name, value in ours.items():
            assert name in golden, f"{path}{name} is not among the recorded outputs {sorted(golden)}"
            yield from _pairs(f"{path}{name}.", value, golden[name])
    elif isinstance(ours, list):
        assert len(ours) == len(golden), f"{path} has {len(ours)} parts, recorded {len(golden)}"
        for place, (left, right) in enumerate(zip(ours, golden, strict=True)):
            yield from _pairs(f"{path}{place}.", left, right)
    else:
        yield path.removesuffix("."), ours, golden


def _plain(value: Any) -> Any:
    return value.detach().cpu().double().numpy() if isinstance(value, Tensor) else value
