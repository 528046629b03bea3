"""With ``full_determinism`` a sync run is bitwise the same, whoever was slow."""

from pathlib import Path

import pytest

from asyncrl.observe.curve import read_metrics
from tests.processes.invariants import training_steps
from tests.processes.launching import ROOT
from tests.processes.warm_ranks import run_warm

OPTIONS = (
    "trainer.total_training_steps=3",
    "trainer.val_before_train=false",
    "actor_rollout_ref.rollout.full_determinism=true",
    "actor_rollout_ref.rollout.max_num_seqs=64",
    "actor_rollout_ref.rollout.agent.num_workers=2",
    f"reward.custom_reward_function.path={ROOT / 'tests/processes/delayed_reward.py'}",
)


def digests(folder: Path, *options: str) -> list[str]:
    run_warm(folder, *OPTIONS, *options)
    return [record["training/weight_digest"] for record in training_steps(read_metrics(folder))]


@pytest.mark.timeout(240)
def test_two_runs_under_different_delays_give_bitwise_equal_weights(tmp_path: Path) -> None:
    first = digests(tmp_path / "one", "trainer.test_freq=-1", "+reward.custom_reward_function.reward_kwargs.spread=1")
    second = digests(tmp_path / "two", "trainer.test_freq=1", "+reward.custom_reward_function.reward_kwargs.spread=2")
    assert len(first) == 3
    assert first == second
