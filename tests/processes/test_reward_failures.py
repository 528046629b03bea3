"""Rewards that raise, return no number or hang: their sessions fail and are counted; the run goes on, or says why it cannot."""

from pathlib import Path

import pytest

from tests.processes.launching import torchrun
from tests.processes.live_run import live_run

ONE_RANK = torchrun(1, "asyncrl.launch")
THREE = ("trainer.total_training_steps=3", "trainer.n_gpus_per_node=1")
SOME = """
import itertools, math, time

calls = itertools.count()

def compute_score(data_source, solution_str, ground_truth, extra_info):
    number = next(calls)
    if number == 0:
        time.sleep(3600.0)
    if number % 16 == 1:
        raise ValueError("the scripted failure")
    if number % 16 == 2:
        return math.nan
    return float(number % 2)
"""
ALWAYS = """
def compute_score(data_source, solution_str, ground_truth, extra_info):
    raise ValueError("the scripted failure")
"""


def reward_file(folder: Path, text: str) -> str:
    """The option that uses this reward."""
    file = folder / "reward.py"
    file.write_text(text)
    return f"reward.custom_reward_function.path={file}"


@pytest.mark.timeout(120)
def test_failed_rewards_are_counted_and_the_run_goes_on_to_a_clean_end(tmp_path: Path) -> None:
    with live_run(tmp_path, *THREE, "reward.timeout=1", reward_file(tmp_path, SOME), command=ONE_RANK) as run:
        run.seconds_to_end(100.0)
        assert run.process.returncode == 0, run.output()
        assert [record["training/rollout_failure/failed_sessions"] for record in run.metrics] == [3, 2, 2]
        assert [record["training/rows_trained"] for record in run.metrics] == [13, 14, 14]
        said = [line for line in run.stdout if "failed sessions, the first is" in line]
        assert len(said) == 3
        assert all("ValueError: the scripted failure" in line or "timeout after 1 s" in line or "nan" in line for line in said)
        assert not (run.run_folder / "first_cause.json").exists()
        assert run.own_lines == []
        run.check_nothing_left()


@pytest.mark.timeout(120)
def test_a_reward_that_always_raises_ends_the_run_with_its_error(tmp_path: Path) -> None:
    with live_run(tmp_path, *THREE, reward_file(tmp_path, ALWAYS), command=ONE_RANK) as run:
        run.seconds_to_end(100.0)
        assert run.process.returncode != 0
        run.check_cause("rank 0: RunFailed: step 1 has no row to train")
        assert "ValueError: the scripted failure" in run.first_cause
        run.check_nothing_left()
