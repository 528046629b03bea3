"""The quickstart to its end for three seeds, and forty steps of each control. Minutes; run by ``make learn``."""

from pathlib import Path

import pytest

from asyncrl.observe.curve import read_metrics
from tests.processes.invariants import accuracies, check_invariants, training_steps
from tests.processes.launching import run_quickstart

pytestmark = [pytest.mark.learn, pytest.mark.timeout(1200)]
FORTY = ("trainer.total_training_steps=40", "trainer.test_freq=20")


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_the_quickstart_learns_one_digit_sums(tmp_path: Path, seed: int) -> None:
    run_quickstart(tmp_path / "run", f"trainer.seed={seed}")
    records = read_metrics(tmp_path / "run")
    found = accuracies(records)
    check_invariants(records)
    assert found[0] < 0.45
    assert found[-1] > 0.90


def test_control_a_learning_rate_of_zero_changes_nothing(tmp_path: Path) -> None:
    run_quickstart(tmp_path / "run", *FORTY, "actor_rollout_ref.actor.optim.lr=0")
    records = read_metrics(tmp_path / "run")
    assert len({record["training/weight_digest"] for record in training_steps(records)}) == 1
    assert len(set(accuracies(records))) == 1


def test_control_a_reversed_reward_ends_below_fifteen_percent(tmp_path: Path) -> None:
    run_quickstart(tmp_path / "run", *FORTY, "reward.custom_reward_function.name=reversed_score")
    assert accuracies(read_metrics(tmp_path / "run"))[-1] < 0.15


def test_control_a_coin_blind_to_the_answer_gains_nothing(tmp_path: Path) -> None:
    run_quickstart(tmp_path / "run", *FORTY, "reward.custom_reward_function.name=coin_score")
    found = accuracies(read_metrics(tmp_path / "run"))
    assert found[-1] - found[0] <= 0.10
