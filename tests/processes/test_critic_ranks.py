"""Critic and token-level estimators over several ranks, launched: one result, that of the dense step, however rows are cut."""

from pathlib import Path
from statistics import fmean, variance
from typing import Any

import pytest

from asyncrl.observe.curve import read_metrics
from asyncrl.quickstart.assets import ADD1
from tests.dense_critic import DenseCritic
from tests.processes.invariants import training_steps
from tests.processes.launching import run_train
from tests.processes.saved_tensors import saved_tensors
from tests.processes.test_critic_runs import check_ppo, ppo
from tests.processes.test_every_estimator import CRITIC, GENTLE, NO_REFERENCE, check_run, scripted
from tests.processes.test_resume import final, run as run_mortal
from tests.processes.warm_ranks import run_scenario

GAE = ("algorithm.adv_estimator=gae", *CRITIC, *NO_REFERENCE)
SOON = (2, "critic.ppo_micro_batch_size_per_gpu=3", False)
"""The cut of the suite: ranks, micro-batches, packed; all of them run with ``make faults``."""
CUTS = [
    (ranks, micro, packed)
    for ranks in (1, 2, 4)
    for micro in ("critic.ppo_micro_batch_size_per_gpu=1", "critic.ppo_max_token_len_per_gpu=12")
    for packed in (False, True)
]
TOKEN = ("reinforce_plus_plus", "remax", "optimal_token_baseline", "tir_optimal_token_baseline")


def check_cut(folder: Path, ranks: int, micro: str, packed: bool) -> list[dict[str, Any]]:
    layout = f"critic.model.use_remove_padding={str(packed).lower()}"
    records = run_scenario(folder, ranks, [scripted(greedy=False)] * 2, *GENTLE, *GAE, micro, layout)
    critic = DenseCritic(ADD1 / "model", folder / "critic_0.safetensors")
    check_run(folder, records, critic, adv_estimator="gae", kl_loss_coef=0.0)
    return records


def trained(record: dict[str, Any]) -> tuple[list[float], ...]:
    """Values, returns and advantages of all trainable tokens."""
    places = [(key, at) for key in record["tags"] for at, one in enumerate(record["rollout"][key]["response_mask"]) if one]
    fields = (("values", "values"), ("advantages", "returns"), ("advantages", "advantages"))
    return tuple([record[stage][key][field][at] for key, at in places] for stage, field in fields)


@pytest.mark.timeout(180)
def test_two_ranks_have_the_values_losses_gradients_and_weights_of_the_dense_step(tmp_path: Path) -> None:
    records = check_cut(tmp_path, *SOON)
    for record in records:
        numbers, (values, returns, advantages) = record["numbers"], trained(record)
        assert numbers["critic/values/mean"] == pytest.approx(fmean(values), abs=1e-6)
        assert numbers["critic/returns/max"] == pytest.approx(max(returns), abs=1e-6)
        assert numbers["critic/advantages/min"] == pytest.approx(min(advantages), abs=1e-6)
        left = variance([target - value for target, value in zip(returns, values, strict=True)])
        assert numbers["critic/vf_explained_var"] == pytest.approx(1 - left / (variance(returns) + 1e-5), abs=1e-5)
    for record in records:
        assert sum(padding for share in record["shares"] for _, padding in share) == 1
        assert record["numbers"]["training/rows_trained"] == 7


@pytest.mark.faults
@pytest.mark.timeout(180)
@pytest.mark.parametrize(("ranks", "micro", "packed"), CUTS)
def test_every_cut_of_the_critics_rows_is_that_of_the_dense_step(ranks: int, micro: str, packed: bool, tmp_path: Path) -> None:
    check_cut(tmp_path, ranks, micro, packed)


@pytest.mark.faults
@pytest.mark.timeout(180)
@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize("name", TOKEN)
def test_moments_and_baselines_are_those_of_the_rows_of_all_ranks(name: str, ranks: int, tmp_path: Path) -> None:
    options = (f"algorithm.adv_estimator={name}", *NO_REFERENCE)
    records = run_scenario(tmp_path, ranks, [scripted(greedy=name == "remax")] * 2, *GENTLE, *options)
    check_run(tmp_path, records, adv_estimator=name, kl_loss_coef=0.0)


@pytest.mark.faults
@pytest.mark.timeout(180)
def test_ranks_without_a_row_take_part(tmp_path: Path) -> None:
    [first, second] = scripted(greedy=False)
    records = run_scenario(tmp_path, 4, [[[first[0], [], []], [[], [], []]], [first, second]], *GENTLE, *GAE)
    critic = DenseCritic(ADD1 / "model", tmp_path / "critic_0.safetensors")
    check_run(tmp_path, records, critic, adv_estimator="gae", kl_loss_coef=0.0)
    assert records[0]["numbers"]["training/rows_trained"] == 1


@pytest.mark.faults
@pytest.mark.timeout(180)
def test_config_ppo_on_two_ranks_trains_five_steps_and_its_value_loss_falls(tmp_path: Path) -> None:
    run_train(*ppo(tmp_path), "trainer.device=cpu", "trainer.n_gpus_per_node=2")
    check_ppo(training_steps(read_metrics(tmp_path / "run")))


@pytest.mark.faults
@pytest.mark.timeout(180)
def test_the_quickstart_with_a_critic_begins_to_change_the_policy_at_step_three(tmp_path: Path) -> None:
    run_train("config=quickstart_ppo", "trainer.total_training_steps=4", f"trainer.default_local_dir={tmp_path / 'run'}")
    steps = training_steps(read_metrics(tmp_path / "run"))
    assert [step["training/weights_changed"] for step in steps] == [0.0, 0.0, 1.0, 1.0]
    assert [step["training/critic/optimizer_steps"] for step in steps] == [2.0] * 4


@pytest.mark.faults
@pytest.mark.timeout(240)
def test_after_a_kill_torchrun_brings_policy_and_critic_to_bitwise_the_same_weights(tmp_path: Path) -> None:
    options = ("algorithm.adv_estimator=gae", "critic.optim.lr=1e-3", "critic.optim.lr_warmup_steps=3")
    run_mortal(tmp_path / "whole", "never", 0, *options)
    output = run_mortal(tmp_path / "killed", "saving", 2, *options)
    assert "resumed after step 1" in output
    assert final(tmp_path / "killed") == final(tmp_path / "whole")
    whole, killed = (saved_tensors(tmp_path / name / "global_step_4" / "critic") for name in ("whole", "killed"))
    assert whole.keys() == killed.keys()
    assert all(whole[name].equal(killed[name]) for name in whole)
