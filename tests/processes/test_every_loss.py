"""Each policy loss, aggregation and KL estimator through configuration, against the dense step.

Two steps of one run: scripted rows with two outputs of a session, masks with holes and empty answers; then rows that agents
sampled. Each step has two mini-batches and two passes, so that ratios are not 1.
"""

from pathlib import Path
from typing import Any, get_args

import pytest

from asyncrl.algorithms.losses import POLICY_LOSSES
from asyncrl.config.schema.actor import LossMode
from asyncrl.config.schema.types import KlEstimator, LossAggregation
from tests.processes.off_policy import ACTOR, TWICE, check_run, run, scripted

LOSS = f"{ACTOR}.policy_loss"
CHANGES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "dppo_tv": ({"clip_ratio_low": 0.003, "clip_ratio_high": 0.002}, {"clip_low": 0.003, "clip_high": 0.002}),
    "dppo_kl": ({"clip_ratio_low": 3e-5, "clip_ratio_high": 2e-5}, {"clip_low": 3e-5, "clip_high": 2e-5}),
    "sapo": ({"tau_pos": 0.7, "tau_neg": 1.6}, {"tau_pos": 0.7, "tau_neg": 1.6}),
    "clip_cov": (
        {"policy_loss.clip_cov_ratio": 0.4, "policy_loss.clip_cov_lb": -0.2, "policy_loss.clip_cov_ub": 2.0},
        {"clip_cov_ratio": 0.4, "clip_cov_lb": -0.2, "clip_cov_ub": 2.0},
    ),
    "kl_cov": ({"policy_loss.kl_cov_ratio": 0.4, "policy_loss.ppo_kl_coef": 0.7}, {"kl_cov_ratio": 0.4, "ppo_kl_coef": 0.7}),
    "dro": ({"policy_loss.dro_beta": 0.5}, {"dro_beta": 0.5}),
    "grpo": (
        {"policy_loss.epsilon": 0.01, "policy_loss.epsilon_high": 0.02, "policy_loss.delta": 1.03},
        {"epsilon": 0.01, "epsilon_high": 0.02, "delta": 1.03},
    ),
    "luspo": ({"policy_loss.epsilon": 0.01, "policy_loss.delta": 1.015}, {"epsilon": 0.01, "epsilon_high": 0.01, "delta": 1.015}),
    "vespo": (
        {
            "policy_loss.vespo_k_pos": 1.5,
            "policy_loss.vespo_lambda_pos": 2.5,
            "policy_loss.vespo_k_neg": 3.5,
            "policy_loss.vespo_lambda_neg": 1.5,
        },
        {"k_pos": 1.5, "lambda_pos": 2.5, "k_neg": 3.5, "lambda_neg": 1.5},
    ),
}
"""Options of a loss, and the settings of the dense step that mean the same."""
BYPASS = ("algorithm.rollout_correction.bypass_mode=true",)
FROM_THE_ENGINE = ("bypass_mode", "kl_cov")
"""Losses that are tried with ratios to the policy that sampled: abs(log r) has no gradient to compare where r is 1."""


def changed(options: dict[str, Any]) -> tuple[str, ...]:
    return tuple(f"{ACTOR}.{name}={value}" for name, value in options.items())


def test_the_names_are_those_of_the_losses() -> None:
    assert get_args(LossMode) == tuple(POLICY_LOSSES)


@pytest.mark.parametrize("name", get_args(LossMode))
async def test_a_step_of_each_loss_has_the_loss_and_gradient_of_the_dense_reference(name: str, tmp_path: Path) -> None:
    options, settings = CHANGES.get(name, ({}, {}))
    bypass = name in FROM_THE_ENGINE
    given = (f"{LOSS}.loss_mode={name}", *changed(options), *TWICE, *(BYPASS if bypass else ()))
    records = await run(tmp_path, [scripted(), scripted() if bypass else None], *given)
    check_run(tmp_path, records, epochs=2, loss_mode=name, bypass=bypass, **settings)
    assert [len(record["numbers"]["actor/by_update/loss"]) for record in records] == [4, 4]
    if name in ("vanilla", "bypass_mode", "dppo_tv", "dppo_kl", "gspo", "geo_mean", "cispo", "clip_cov"):
        assert any(value > 0 for record in records for value in record["numbers"]["actor/by_update/pg_clipfrac"])
    if name in ("bypass_mode", "geo_mean"):
        assert any(value > 0 for record in records for value in record["numbers"]["actor/by_update/pg_clipfrac_lower"])


async def test_one_ratio_a_row_is_an_option_of_grpo(tmp_path: Path) -> None:
    options = (f"{LOSS}.loss_mode=grpo", f"{LOSS}.epsilon=0.005", f"{LOSS}.importance_sampling_level=sequence")
    records = await run(tmp_path, [scripted()], *options, *TWICE)
    check_run(tmp_path, records, epochs=2, loss_mode="grpo", level="sequence", epsilon=0.005, epsilon_high=0.005)


@pytest.mark.parametrize("mode", get_args(LossAggregation))
async def test_a_step_of_each_aggregation_has_the_loss_and_gradient_of_the_dense_reference(mode: str, tmp_path: Path) -> None:
    records = await run(tmp_path, [scripted()], f"{ACTOR}.loss_agg_mode={mode}", f"{ACTOR}.loss_scale_factor=7.0", *TWICE)
    check_run(tmp_path, records, epochs=2, loss_agg_mode=mode, loss_scale=7.0)


@pytest.mark.parametrize("name", get_args(KlEstimator))
async def test_a_step_of_each_kl_in_loss_and_reward_has_the_loss_and_gradient_of_the_dense_reference(name: str, tmp_path: Path) -> None:
    """The reference is the start; the policy that sampled was another, and from the second pass on the policy has left it too."""
    options = (
        f"{ACTOR}.kl_loss_type={name}",
        f"{ACTOR}.kl_loss_coef=0.5",
        "algorithm.use_kl_in_reward=true",
        f"algorithm.kl_penalty={name}",
        "algorithm.kl_ctrl.kl_coef=2.0",
        f"{ACTOR}.ppo_epochs=2",
    )
    [record] = await run(tmp_path, [scripted()], *options, *BYPASS)
    # One mini-batch: in the first pass log-probs are those of the reference to the last bit, where abs has no slope.
    whole: dict[str, Any] = {"mini_batches": [list(range(len(record["tags"])))] * 2}
    check_run(tmp_path, [record], bypass=True, kl_loss_type=name, kl_loss_coef=0.5, kl_in_reward=2.0, kl_penalty=name, **whole)
    assert record["numbers"]["actor/by_update/kl_loss"][1] != 0.0
    assert record["numbers"]["actor/reward_kl_penalty"] != 0.0
