"""The same cases computed in float32: within 1e-5, wherever the rounding of the inputs alone does not move the answer further."""

from collections import Counter
from dataclasses import replace

import pytest
import torch

from tests.goldens.adapters import adapter
from tests.goldens.balancing import CHECKS
from tests.goldens.case import FILES, Case, compare, read, rounded
from tests.goldens.tally import FLOAT32

TOLERANCE = 1e-5


def within(recorded: Case, computed: Case) -> bool:
    """Whether the function's answer to ``computed`` is the recorded one."""
    call = adapter(computed)
    assert call is not None
    try:
        compare(recorded, call(computed), TOLERANCE, TOLERANCE)
    except AssertionError:
        return False
    return True


def comparable(case: Case) -> bool:
    """Recorded in float64 as numbers that can be held against ours."""
    recorded = case.dtype == torch.float64 and "raises" not in case.outputs and "*" not in case.cautioned
    return recorded and case.function not in CHECKS and adapter(case) is not None


@pytest.mark.parametrize("file", FILES)
def test_recorded_cases_of_a_file_in_float32(file: str) -> None:
    wrong = []
    outcomes: Counter[str] = Counter()
    for case in filter(comparable, read(file)):
        single = replace(case, dtype=torch.float32)
        if within(single, single):
            outcomes["within"] += 1
        elif within(case, rounded(case)):
            wrong.append(case.name)
        else:
            outcomes["moved by its inputs"] += 1
    FLOAT32[file] = outcomes
    assert not wrong, f"{len(wrong)} cases are off by more than {TOLERANCE:g} in float32: {wrong}"
