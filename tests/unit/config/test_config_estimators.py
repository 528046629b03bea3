"""What the configuration says of estimators is what they declare, and what is said about those that do not read an option."""

from dataclasses import asdict
from typing import Any, get_args

import pytest
import torch
from torch import Tensor

from asyncrl.algorithms.advantages import ESTIMATORS, AdvantageOptions, OutcomeEstimator, OutcomeRows, TokenRows
from asyncrl.config.estimators import COMPARING, GREEDY, READS, SQUARING, VALUING
from asyncrl.config.load import assembled
from asyncrl.config.schema.algorithm import AdvEstimator

PAIR = {"actor_rollout_ref": {"rollout": {"n": 2}}}


def needing(what: str) -> list[str]:
    return [name for name, estimator in ESTIMATORS.items() if asdict(estimator.needs)[what]]


def test_the_names_are_those_of_the_estimators() -> None:
    assert get_args(AdvEstimator) == tuple(ESTIMATORS)


@pytest.mark.parametrize(
    ("said", "need"), [(COMPARING, "groups"), (VALUING, "values"), (GREEDY, "greedy_baseline"), (SQUARING, "sum_pi_squared")]
)
def test_what_is_said_of_an_estimator_is_what_it_declares(said: tuple[str, ...], need: str) -> None:
    assert list(said) == needing(need)


CHANGES: dict[str, dict[str, Any]] = {
    "gamma": {"gamma": 0.5},
    "lam": {"lam": 0.5},
    "norm_adv_by_std_in_grpo": {"normalise_by_std": False},
    "gdpo_reward_keys": {"components": (("right", 1.0),)},
}


def estimated(name: str, **options: Any) -> Tensor:
    """Advantages of four rows of two prompts, everything supplied that an estimator may ask for."""
    estimator, draw, groups = ESTIMATORS[name], torch.Generator().manual_seed(1), torch.tensor([0, 0, 1, 1])
    if isinstance(estimator, OutcomeEstimator):
        scores, lengths = torch.tensor([1.0, 0.25, 0.5, 0.0]), torch.tensor([3, 2, 1, 3])
        right = torch.tensor([0.0, 1.0, 0.5, 0.25])
        return estimator(OutcomeRows(scores, groups, lengths, components={"right": right}), AdvantageOptions(**options))
    rewards, values, squares = (torch.rand(4, 3, generator=draw) for _ in range(3))
    rows = TokenRows(
        rewards, torch.ones(4, 3), groups, values=values, baselines=values[:, 0], old_log_probs=-1 - rewards, sum_pi_squared=squares
    )
    return estimator(rows, AdvantageOptions(**options)).advantages


@pytest.mark.parametrize("name", ESTIMATORS)
def test_an_option_changes_the_estimators_that_are_said_to_read_it_and_no_others(name: str) -> None:
    plain = estimated(name)
    changed = {option for option, change in CHANGES.items() if not torch.allclose(estimated(name, **change), plain, atol=1e-3)}
    assert changed == {option for option, names in READS.items() if name in names}


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"adv_estimator": "grpo", "gamma": 0.9}, ["algorithm.gamma has no effect on grpo"]),
        ({"adv_estimator": "reinforce_plus_plus", "gamma": 0.9, "lam": 0.5}, ["algorithm.lam has no effect on reinforce_plus_plus"]),
        ({"adv_estimator": "rloo", "norm_adv_by_std_in_grpo": False}, ["algorithm.norm_adv_by_std_in_grpo has no effect on rloo"]),
        ({"adv_estimator": "grpo", "gdpo_reward_keys": ["a"]}, ["algorithm.gdpo_reward_keys has no effect on grpo"]),
        ({"adv_estimator": "gae", "gamma": 0.9, "lam": 0.5}, []),
        (
            {"adv_estimator": "gdpo", "gdpo_reward_keys": ["a"], "use_kl_in_reward": True},
            ["algorithm.use_kl_in_reward has no effect on gdpo with gdpo_reward_keys: their parts are what it compares"],
        ),
    ],
)
def test_an_option_that_the_estimator_does_not_read_is_named_at_the_start(given: dict[str, Any], said: list[str]) -> None:
    assert assembled(PAIR | {"algorithm": given}, "x").notices == said


def test_a_warm_up_without_a_critic_is_named_at_the_start() -> None:
    loaded = assembled(PAIR | {"algorithm": {"adv_estimator": "grpo"}, "trainer": {"critic_warmup": 5}}, "x")
    assert loaded.notices == ["trainer.critic_warmup=5 without a critic: nothing learns before that step"]


def test_options_of_a_critic_that_is_not_there_are_passed_over_with_a_notice() -> None:
    options = {"critic": {"model": {"use_fused_kernels": True}, "optim": {"lr": 1.0}}, "algorithm": {"adv_estimator": "grpo"}}
    loaded = assembled(PAIR | options, "x")
    off = "has no effect: its part is switched off"
    assert loaded.notices == [f"critic.model.use_fused_kernels=true {off}", f"critic.optim.lr=1.0 {off}"]
    again = assembled(loaded.resolved, "x").notices
    assert [notice for notice in again if off in notice] == loaded.notices[1:]


def test_parts_of_a_reward_have_the_weight_one_unless_given_another() -> None:
    def components(**given: Any) -> tuple[tuple[str, float], ...]:
        return assembled(PAIR | {"algorithm": {"adv_estimator": "gdpo", **given}}, "x").config.algorithm.components

    assert components() == ()
    assert components(gdpo_reward_keys=["a", "b"]) == (("a", 1.0), ("b", 1.0))
    assert components(gdpo_reward_keys=["a", "b"], gdpo_reward_weights=[2, 0.5]) == (("a", 2.0), ("b", 0.5))
