"""Rollout correction through configuration, on rows that another policy sampled, against the dense step."""

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from asyncrl.algorithms.rollout_correction.options import IS_LEVELS, RS_CRITERIA
from asyncrl.quickstart.assets import ADD1
from tests.dense_critic import DenseCritic
from tests.dense_reference import correction, response_tokens
from tests.processes.off_policy import ACTOR, OPTIONS, TWICE, check_run, run, scripted
from tests.processes.test_every_estimator import CRITIC
from tests.processes.test_worked_example import model, rows_of
from tests.processes.warm_ranks import run_scenario

CORRECTION = "algorithm.rollout_correction"
LOSS = f"{ACTOR}.policy_loss"
WEIGHTS: list[dict[str, Any]] = [
    {"rollout_is": "token", "rollout_is_threshold": 1.5},
    {"rollout_is": "token", "rollout_is_threshold": "0.7_1.4"},
    {"rollout_is": "token", "rollout_is_threshold": 1.2, "rollout_is_batch_normalize": True},
    {"rollout_is": "sequence", "rollout_is_threshold": 1.5},
    {"rollout_is": "sequence", "rollout_is_threshold": "0.6_2.0", "rollout_is_batch_normalize": True},
]
THRESHOLDS = {
    "token_k1": "0.6_1.5", "token_k2": 0.15, "token_k3": 0.15, "seq_sum_k1": "0.7_1.5", "seq_sum_k2": 0.2, "seq_sum_k3": 0.2,
    "seq_mean_k1": 1.3, "seq_mean_k2": 0.1, "seq_mean_k3": 0.1, "seq_max_k2": 0.2, "seq_max_k3": 0.2,
}  # fmt: skip
"""A threshold of each criterion that some rows pass and some do not."""
MIXED: dict[str, Any] = {
    "rollout_is": "token",
    "rollout_is_threshold": 1.5,
    "rollout_rs": "token_k1,seq_max_k2",
    "rollout_rs_threshold": "0.6_1.5,0.35",
}


def given(part: dict[str, Any], section: str = CORRECTION) -> tuple[str, ...]:
    return tuple(f"{section}.{name}={str(value).lower()}" for name, value in part.items())


def settings(part: dict[str, Any]) -> dict[str, Any]:
    """The same for the dense step."""
    return {"normalize" if name == "rollout_is_batch_normalize" else name: value for name, value in part.items()}


def check_metrics(record: dict[str, Any], expected: dict[str, Any]) -> None:
    found = {name: record["numbers"][f"rollout_corr/{name}"] for name in expected["corrections"]}
    assert found == pytest.approx(expected["corrections"], rel=1e-4, abs=1e-5)


def test_every_level_and_every_criterion_is_tried() -> None:
    assert {part["rollout_is"] for part in WEIGHTS} == set(IS_LEVELS)
    assert tuple(THRESHOLDS) == RS_CRITERIA


@pytest.mark.parametrize("part", WEIGHTS, ids=lambda part: "-".join(map(str, part.values())))
async def test_importance_weights_of_each_kind_weigh_the_loss_as_in_the_dense_step(part: dict[str, Any], tmp_path: Path) -> None:
    records = await run(tmp_path, [scripted()], *given(part), *TWICE)
    [expected] = check_run(tmp_path, records, epochs=2, **settings(part))
    check_metrics(records[0], expected)
    assert len({round(weight, 4) for row in expected["kept"] for weight in row["weights"]}) > 2


@pytest.mark.parametrize("name", THRESHOLDS)
async def test_what_fails_a_criterion_is_in_no_loss_and_no_denominator(name: str, tmp_path: Path) -> None:
    part = {"rollout_rs": name, "rollout_rs_threshold": THRESHOLDS[name]}
    records = await run(tmp_path, [scripted()], *given(part), f"{ACTOR}.loss_agg_mode=seq-mean-token-mean")
    [expected] = check_run(tmp_path, records, loss_agg_mode="seq-mean-token-mean", **settings(part))
    check_metrics(records[0], expected)
    assert 0 < records[0]["numbers"]["rollout_corr/rollout_rs_masked_fraction"] < 1


@pytest.mark.parametrize("mode", ["token-mean", "seq-mean-token-mean"])
async def test_what_was_rejected_may_stay_in_the_denominators(mode: str, tmp_path: Path) -> None:
    part = MIXED | {"rejected_in_denominator": True}
    records = await run(tmp_path, [scripted()], *given(part), f"{ACTOR}.loss_agg_mode={mode}", *TWICE)
    check_run(tmp_path, records, epochs=2, loss_agg_mode=mode, **settings(part))


@pytest.mark.parametrize("name", ["vespo", "geo_mean"])
async def test_weights_enter_the_losses_that_have_a_place_for_them(name: str, tmp_path: Path) -> None:
    records = await run(tmp_path, [scripted()], *given(MIXED), f"{LOSS}.loss_mode={name}", *TWICE)
    own: dict[str, Any] = {"k_pos": 2.0, "lambda_pos": 3.0, "k_neg": 3.0, "lambda_neg": 2.0}
    check_run(tmp_path, records, epochs=2, loss_mode=name, **settings(MIXED), **own)


@pytest.mark.parametrize("name", ["reinforce_plus_plus_baseline", "reinforce_plus_plus", "tir_optimal_token_baseline", "gae"])
async def test_estimators_see_the_mask_after_rejection_and_the_scores_of_all_rows(name: str, tmp_path: Path) -> None:
    options = (f"algorithm.adv_estimator={name}", *(CRITIC if name == "gae" else ()))
    records = await run(tmp_path, [scripted()], *given(MIXED), *options)
    critic = DenseCritic(ADD1 / "model", tmp_path / "critic_0.safetensors") if name == "gae" else None
    own: dict[str, Any] = {"critic": critic, "critic_lr": 0.05, "cliprange_value": 0.2} if name == "gae" else {}
    check_run(tmp_path, records, adv_estimator=name, **settings(MIXED), **own)


BYPASSED: dict[str, dict[str, Any]] = {
    "ppo_clip": MIXED,
    "reinforce": MIXED | {"rollout_is_batch_normalize": True},
    "reinforce, rows": {"rollout_is": "sequence", "rollout_is_threshold": "0.6_2.0"},
    "reinforce, all counted": MIXED | {"rejected_in_denominator": True},
}


@pytest.mark.parametrize("name", BYPASSED)
async def test_the_loss_of_the_bypass_corrects_from_the_engine_to_the_policy_of_now(name: str, tmp_path: Path) -> None:
    part = BYPASSED[name] | {"loss_type": name.partition(",")[0]}
    records = await run(tmp_path, [scripted()], *given(part | {"bypass_mode": True}), f"{LOSS}.loss_mode=bypass_mode", *TWICE)
    check_run(tmp_path, records, epochs=2, bypass=True, loss_mode="bypass_mode", **settings(part))
    numbers = records[0]["numbers"]
    assert "rollout_corr/kl" not in numbers
    assert numbers["actor/rollout_corr/kl"] != 0.0
    assert ("rollout_rs" in part) == (numbers.get("actor/rollout_corr/rollout_rs_masked_fraction", 0.0) > 0)


async def test_a_correction_of_the_loss_takes_the_place_of_that_of_the_algorithm(tmp_path: Path) -> None:
    """Option by option."""
    shared: dict[str, Any] = {"rollout_rs": "token_k2", "rollout_rs_threshold": 0.3, "bypass_mode": True}
    own: dict[str, Any] = {"rollout_is": "token", "loss_type": "reinforce"}
    options = (*given(shared), *given(own, f"{LOSS}.rollout_correction"), f"{LOSS}.loss_mode=bypass_mode")
    records = await run(tmp_path, [scripted()], *options, *TWICE)
    del shared["bypass_mode"]
    check_run(tmp_path, records, epochs=2, bypass=True, loss_mode="bypass_mode", rollout_is_threshold=2.0, **shared, **own)


async def test_how_far_the_engine_is_from_the_trainer_is_reported_unasked(tmp_path: Path) -> None:
    [record] = await run(tmp_path, [scripted()])
    rows, policy = rows_of(record), model()
    with torch.no_grad():
        old = response_tokens(policy, rows, 1.0)[0]
    check_metrics(record, {"corrections": correction(rows, old, {})[1]})
    assert abs(record["numbers"]["rollout_corr/kl"]) > 0.01
    assert "rollout_corr/rollout_is_mean" not in record["numbers"]


@pytest.mark.parametrize("counted", [False, True])
async def test_a_batch_that_is_rejected_whole_is_left_out_and_counted(counted: bool, tmp_path: Path) -> None:
    part = {"rollout_rs": "seq_max_k2", "rollout_rs_threshold": 1e-9, "rejected_in_denominator": counted}
    [record] = await run(tmp_path, [scripted()], *given(part))
    numbers = record["numbers"]
    assert numbers["rollout_corr/rollout_rs_masked_fraction"] == 1.0
    assert (numbers["training/skipped_steps/no_trainable_token"], numbers["training/optimizer_steps"]) == (1, 0)
    assert numbers["training/weights_changed"] == 0.0


CUTS = {
    "clip_cov": (f"{LOSS}.clip_cov_ratio=0.4", f"{LOSS}.clip_cov_lb=-0.2", f"{LOSS}.clip_cov_ub=2.0"),
    "kl_cov": (f"{LOSS}.kl_cov_ratio=0.4", f"{LOSS}.ppo_kl_coef=0.7"),
    "bypass_mode": given(BYPASSED["reinforce"] | {"loss_type": "reinforce"}),
}
MICRO = {
    "one row": (f"{ACTOR}.ppo_micro_batch_size_per_gpu=1", "actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu=1"),
    "three rows": (f"{ACTOR}.ppo_micro_batch_size_per_gpu=3", "actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu=2"),
    "all": (),
}


@pytest.mark.parametrize("name", CUTS)
async def test_a_loss_that_looks_at_the_whole_mini_batch_does_not_depend_on_its_cut(name: str, tmp_path: Path) -> None:
    found = {}
    for cut, micro in MICRO.items():
        folder = tmp_path / cut.replace(" ", "_")
        folder.mkdir()
        options = (f"{CORRECTION}.bypass_mode=true", f"{LOSS}.loss_mode={name}", *CUTS[name], *micro, f"{ACTOR}.ppo_epochs=2")
        [record] = await run(folder, [scripted()], *options)
        numbers = {key: value for key, value in record["numbers"].items() if key.startswith("actor/by_update/")}
        found[cut] = numbers, load_file(folder / "weights_1.safetensors")
    for numbers, weights in found.values():
        assert numbers.keys() == found["all"][0].keys()
        for key, values in numbers.items():
            assert values == pytest.approx(found["all"][0][key], rel=1e-4, abs=1e-5), key
        for key, tensor in weights.items():
            torch.testing.assert_close(tensor, found["all"][1][key], rtol=0, atol=2e-6, msg=key)


@pytest.mark.faults
@pytest.mark.timeout(180)
@pytest.mark.parametrize("name", CUTS)
def test_nor_does_it_depend_on_the_number_of_ranks(name: str, tmp_path: Path) -> None:
    options = (*OPTIONS, f"{CORRECTION}.bypass_mode=true", f"{LOSS}.loss_mode={name}", *CUTS[name], f"{ACTOR}.ppo_epochs=2")
    weights = []
    for ranks in (1, 2):
        folder = tmp_path / str(ranks)
        folder.mkdir()
        run_scenario(folder, ranks, [scripted()], *options)
        weights.append(load_file(folder / "weights_1.safetensors"))
    for key, tensor in weights[0].items():
        torch.testing.assert_close(tensor, weights[1][key], rtol=0, atol=2e-6, msg=key)
