"""Ten steps of the quickstart, through the command a user types, and of its controls."""

import json
from pathlib import Path

import pytest

from asyncrl.observe.curve import read_metrics
from tests.processes.invariants import accuracies, check_invariants, training_steps
from tests.processes.launching import run_quickstart
from tests.processes.warm_ranks import run_warm

TEN = ("trainer.total_training_steps=10", "trainer.test_freq=5")


@pytest.mark.timeout(180)
def test_ten_steps_hold_every_invariant_and_leave_a_whole_run_folder(tmp_path: Path) -> None:
    output = run_quickstart(tmp_path / "run", *TEN)
    records = read_metrics(tmp_path / "run")
    assert [record["step"] for record in training_steps(records)] == list(range(1, 11))
    assert [record["step"] for record in records if "val-core/add1_train/acc/mean@1" in record] == [0, 5, 10]
    check_invariants(records)
    assert "step 10/10" in output
    left = {str(path.relative_to(tmp_path / "run")) for path in (tmp_path / "run").rglob("*")}
    logs = {f"logs/{name}.log" for name in ("rank0", "rank1", "supervisor", "shard-0", "shard-1", "agent-0", "reward-0")}
    assert {"metrics.jsonl", "config.yaml", "learning_curve.png", "generations.jsonl", "tensorboard"} | logs <= left
    shown = [json.loads(line) for line in (tmp_path / "run" / "generations.jsonl").read_text().splitlines()]
    assert len(shown) == 40
    assert all(sample["prompt"][1] == "+" and sample["score"] in (0.0, 1.0) for sample in shown)


@pytest.mark.timeout(180)
def test_a_learning_rate_of_zero_leaves_the_weights_bitwise_and_the_accuracy_unchanged(tmp_path: Path) -> None:
    run_warm(tmp_path / "run", "trainer.total_training_steps=4", "trainer.test_freq=2", "actor_rollout_ref.actor.optim.lr=0")
    records = read_metrics(tmp_path / "run")
    assert len(training_steps(records)) == 4
    assert len({record["training/weight_digest"] for record in training_steps(records)}) == 1
    assert all(record["training/weights_changed"] == 0.0 for record in training_steps(records))
    assert len(accuracies(records)) == 3
    assert len(set(accuracies(records))) == 1


@pytest.mark.timeout(180)
def test_a_reversed_reward_unlearns(tmp_path: Path) -> None:
    run_warm(tmp_path / "run", *TEN, "reward.custom_reward_function.name=reversed_score")
    found = accuracies(read_metrics(tmp_path / "run"))
    assert found[-1] < found[0]


@pytest.mark.timeout(180)
def test_a_coin_teaches_nothing(tmp_path: Path) -> None:
    run_warm(tmp_path / "run", *TEN, "reward.custom_reward_function.name=coin_score")
    found = accuracies(read_metrics(tmp_path / "run"))
    assert found[-1] - found[0] <= 0.10
