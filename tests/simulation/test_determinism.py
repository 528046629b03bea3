"""A seed decides everything: the same one twice is the same run, in every process."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.simulation.scenario import Scenario

ROOT = str(Path(__file__).parents[2])
SEEDS = (3, 8, 21)
PRINT = f"from tests.simulation.test_determinism import digest; print([digest(seed) for seed in {SEEDS}])"


def digest(seed: int) -> str:
    """What happened in the run of a seed."""
    scenario = Scenario(seed)
    scenario.run()
    return f"{scenario.trace.count} {scenario.trace.digest}"


@pytest.mark.parametrize("seed", SEEDS)
def test_the_same_seed_gives_the_same_events(seed: int) -> None:
    assert digest(seed) == digest(seed)


def test_another_seed_gives_other_events() -> None:
    assert len({digest(seed) for seed in SEEDS}) == len(SEEDS)


def test_another_process_with_other_hashes_gives_the_same_events() -> None:
    shown = []
    for hashes in ("1", "2"):
        environment = os.environ | {"PYTHONHASHSEED": hashes, "PYTHONPATH": ROOT}
        done = subprocess.run([sys.executable, "-c", PRINT], capture_output=True, text=True, check=True, env=environment, cwd=ROOT)
        shown.append(done.stdout)
    assert shown == [f"{[digest(seed) for seed in SEEDS]}\n"] * 2
