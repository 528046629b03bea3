"""Golden cases: where they lie, how they are read, and how an answer is held against one."""

import fnmatch
import json
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
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


UNDER_THE_MASK = "[mask==0]"
"""Ends the name of an output of which only what lies under the response mask is cautioned."""


def compare(case: Case, answer: Answer, rtol: float | None = None, atol: float | None = None) -> list[str]:
    """Hold an answer against the recorded outputs, within the case's own tolerance; return the paths that were compared.

    An output that the answer does not name, or that the case cautions against, is left out. Where the case cautions against
    what lies under the mask, and where a NaN was recorded there, ours must be 0.
    """
    compared = []
    for path, ours, golden in _pairs("", answer, case.outputs):
        if is_cautioned(case, path):
            continue
        left, right = np.asarray(_plain(ours), dtype=np.float64), np.asarray(golden, dtype=np.float64)
        assert left.shape == right.shape, f"{case.name}: {path} has shape {left.shape}, recorded {right.shape}"
        hidden = _under_the_mask(case, path, right)
        if hidden is not None:
            assert bool((left[hidden] == 0).all()), f"{case.name}: {path} is not 0 under the mask"
            right = np.where(hidden, 0.0, right)
        within = (case.rtol if rtol is None else rtol, case.atol if atol is None else atol)
        np.testing.assert_allclose(left, right, *within, equal_nan=True, err_msg=f"{case.name}: {path}")
        compared.append(path)
    return compared


def rounded(case: Case) -> Case:
    """The case with every float of its inputs as float32 has it; what it computes with stays float64."""

    def single(value: Any) -> Any:
        if isinstance(value, Mapping):
            return {name: single(part) for name, part in value.items()}
        if isinstance(value, list):
            return [single(part) for part in value]
        return float(np.float32(value)) if isinstance(value, float) else value

    return replace(case, inputs=single(case.inputs))


def nan_under_the_mask(case: Case) -> bool:
    """Whether a NaN was recorded where the mask is 0 and the case does not say that this has no meaning."""
    found = [(name, case.outputs.get(name)) for name in ("advantages", "returns")]
    hidden = [_under_the_mask(case, name, np.asarray(golden, dtype=np.float64)) for name, golden in found if golden is not None]
    return not case.cautioned and any(part is not None and bool(part.any()) for part in hidden)


def unanswered(case: Case, answer: Answer) -> list[str]:
    """The recorded outputs that the answer does not name and the case does not caution against; null is no output."""
    return [path for path in _missing("", answer, case.outputs) if not is_cautioned(case, path)]


def is_cautioned(case: Case, path: str) -> bool:
    """Whether the case cautions against this output as a whole."""
    return any(path == name or path.startswith(f"{name}.") or fnmatch.fnmatchcase(path, name) for name in case.cautioned)


def _under_the_mask(case: Case, path: str, golden: Any) -> Any:
    """Which elements of this output have no meaning because they lie under the mask; None for none."""
    name, _, row = path.partition(".") if not path.startswith("fields.") else path.removeprefix("fields.").partition(".")
    if name not in ("advantages", "returns") or "response_mask" not in case.inputs:
        return None
    mask = case.inputs["response_mask"]
    hidden = np.asarray(mask[int(row)] if row else mask) == 0
    whole = path.removesuffix(f".{row}") if row else path
    return hidden if f"{whole}{UNDER_THE_MASK}" in case.cautioned else hidden & np.isnan(golden)


def _missing(path: str, ours: Any, golden: Any) -> Iterator[str]:
    if isinstance(golden, Mapping) and isinstance(ours, Mapping):
        for name, value in golden.items():
            if name in ours or value is None:
                yield from _missing(f"{path}{name}.", ours.get(name), value)
            else:
                yield f"{path}{name}"


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
