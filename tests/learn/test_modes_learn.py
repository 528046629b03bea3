"""The quickstart to its end in the three modes, which differ by one word; and how long a separate engine works beside the trainer.

Minutes; run by ``make learn``. The run folders stay below ``ASYNCRL_KEEP_RUNS`` when that is set, for ``asyncrl.quickstart.pictures``.
"""

import os
from pathlib import Path

import pytest

from asyncrl.observe.curve import read_metrics
from tests.processes.invariants import ROWS, accuracies, check_async_invariants, check_invariants, training_steps
from tests.processes.launching import run_quickstart
from tests.processes.overlap import overlap_of_run

pytestmark = [pytest.mark.learn, pytest.mark.timeout(1200)]


def folder_of(mode: str, default: Path) -> Path:
    return Path(os.environ.get("ASYNCRL_KEEP_RUNS", str(default))) / mode


@pytest.mark.parametrize("mode", ["sync", "colocate_async", "separate_async"])
def test_the_quickstart_learns_in_every_mode(tmp_path: Path, mode: str) -> None:
    run = folder_of(mode, tmp_path)
    run_quickstart(run, f"trainer.v1.trainer_mode={mode}")
    records = read_metrics(run)
    found, steps = accuracies(records), training_steps(records)
    assert found[0] < 0.45
    assert found[-1] > 0.90
    assert sum(record["training/rows_trained"] for record in steps) == 100 * ROWS
    if mode == "sync":
        check_invariants(records)
    else:
        check_async_invariants(records)
    if mode == "colocate_async":
        assert max(record["training/off_policy/trajectory_spans/max"] for record in steps) >= 2


def test_a_separate_engine_works_beside_the_update_for_a_third_of_the_time(tmp_path: Path) -> None:
    # The trainer of this model is quicker than answers of three tokens take: an engine with few slots is made as slow as the trainer.
    slow = ("actor_rollout_ref.rollout.max_num_seqs=6", "trainer.v1.separate_async.num_warmup_batches=2")
    run = folder_of("overlap", tmp_path)
    run_quickstart(run, "trainer.v1.trainer_mode=separate_async", "trainer.total_training_steps=30", "trainer.test_freq=-1", *slow)
    check_async_invariants(read_metrics(run), lookahead=2)
    found = overlap_of_run(run)
    assert found.both >= 0.30 * found.whole, found
