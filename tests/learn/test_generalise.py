"""``config=quickstart_generalise`` to its end, and the build of its start weights. About ten minutes; run by ``make learn``."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from asyncrl.observe.curve import read_metrics
from asyncrl.quickstart import build
from asyncrl.quickstart.assets import ADD2
from asyncrl.quickstart.pictures import generalise_curves
from asyncrl.quickstart.tasks import two_digits
from tests.processes.launching import ROOT, environment

pytestmark = [pytest.mark.learn, pytest.mark.timeout(2400)]


def test_sums_that_were_never_trained_are_learned(tmp_path: Path) -> None:
    run = tmp_path / "run"
    command = [sys.executable, "-m", "asyncrl.cli", "train", "config=quickstart_generalise", f"trainer.default_local_dir={run}"]
    result = subprocess.run(command, cwd=ROOT, env=environment(), capture_output=True, text=True, timeout=2300)
    assert result.returncode == 0, result.stdout[-2000:] + result.stderr[-4000:]
    held_out, trained, _ = generalise_curves(run)
    last_step = max(record["step"] for record in read_metrics(run))
    assert held_out.steps == trained.steps
    assert (held_out.steps[0], held_out.steps[-1]) == (0, last_step)
    assert held_out.values[0] < 0.40
    assert held_out.values[-1] > 0.75
    # Held-out pairs fare as trained ones do: rules are learned, not rows.
    assert abs(held_out.values[-1] - trained.values[-1]) < 0.10


def test_the_start_weights_are_rebuilt_from_the_trained_pairs_alone(tmp_path: Path) -> None:
    task, recorded = two_digits(), build.read_record(ADD2)
    threads = torch.get_num_threads()
    try:
        rebuilt = build.build(task, tmp_path, recorded.seed)
    finally:
        torch.set_num_threads(threads)
    assert rebuilt.split == recorded.split
    if build.conditions(rebuilt) == build.conditions(recorded):
        assert build.differences(build.built_files(task), ADD2, tmp_path) == []
        assert rebuilt == recorded
