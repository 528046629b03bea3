"""The table of estimators: what each declares to need, and what a user may put in its place."""

import doctest
import importlib
import math
import pkgutil
from dataclasses import asdict

import pytest
import torch
from torch import Tensor

import asyncrl.algorithms
from asyncrl.algorithms.advantages import (
    ESTIMATORS,
    AdvantageOptions,
    OutcomeEstimator,
    OutcomeRows,
    TokenEstimator,
    TokenRows,
    as_estimator,
    multi_output,
)
from asyncrl.algorithms.advantages.trl import leave_one_out, scaled_advantages

FIELDS = {
    "values": "values",
    "greedy_baseline": "baselines",
    "old_log_probs": "old_log_probs",
    "sum_pi_squared": "sum_pi_squared",
}
"""Where a token-level estimator finds what it declared to need."""


def test_each_declaration_tells_the_level() -> None:
    for estimator in ESTIMATORS.values():
        assert estimator.needs.tokens == isinstance(estimator, TokenEstimator)


@pytest.mark.parametrize("name", ESTIMATORS)
def test_an_estimator_runs_on_what_it_declares_and_on_nothing_less(name: str) -> None:
    estimator = ESTIMATORS[name]
    if isinstance(estimator, OutcomeEstimator):
        return
    declared = [ours for need, ours in FIELDS.items() if asdict(estimator.needs)[need]]
    supply: dict[str, Tensor] = {ours: torch.zeros(2) if ours == "baselines" else torch.zeros(2, 3) for ours in declared}
    groups = torch.zeros(2, dtype=torch.int64) if estimator.needs.groups else None

    def run(fields: dict[str, Tensor]) -> Tensor:
        rows = TokenRows(
            torch.ones(2, 3),
            torch.ones(2, 3),
            groups,
            values=fields.get("values"),
            baselines=fields.get("baselines"),
            old_log_probs=fields.get("old_log_probs"),
            sum_pi_squared=fields.get("sum_pi_squared"),
        )
        return estimator(rows, AdvantageOptions()).advantages

    assert run(supply).shape == (2, 3)
    for missing in declared:
        with pytest.raises(ValueError, match=f"needs {missing}"):
            run({field: value for field, value in supply.items() if field != missing})


def test_the_critic_the_greedy_answer_the_components_and_the_groups_are_asked_for_by_those_that_use_them() -> None:
    def asking(need: str) -> set[str]:
        return {name for name, estimator in ESTIMATORS.items() if asdict(estimator.needs)[need]}

    assert asking("values") == {"gae"}
    assert asking("greedy_baseline") == {"remax"}
    assert asking("reward_components") == {"gdpo"}
    assert asking("old_log_probs") == asking("sum_pi_squared") == {"optimal_token_baseline", "tir_optimal_token_baseline"}
    assert asking("groups") == set(ESTIMATORS) - {"gae", "reinforce_plus_plus", "remax"}


def half(rows: OutcomeRows, options: AdvantageOptions) -> Tensor:
    return rows.scores / 2


def test_a_function_of_two_arguments_is_an_estimator_of_the_users() -> None:
    estimator = as_estimator(half)
    assert isinstance(estimator, OutcomeEstimator)
    assert estimator.needs.groups
    numbers = torch.zeros(2, dtype=torch.int64)
    rows = OutcomeRows(torch.tensor([1.0, 3.0]), numbers, numbers + 1, torch.tensor([0, 1]), numbers)
    assert multi_output(estimator)(rows, AdvantageOptions()).tolist() == [0.5, 1.5]
    assert as_estimator(estimator) is estimator


@pytest.mark.parametrize("wrong", ["grpo", 3, lambda: None, lambda rows: rows, lambda rows, options, more: rows])
def test_anything_else_is_refused(wrong: object) -> None:
    with pytest.raises(TypeError, match=r"advantage estimator|cannot be called"):
        as_estimator(wrong)


def test_the_three_scales_of_trl_differ() -> None:
    """Prompts [1, 0] and [10, 0]: by group, by the deviation 4.856 of all four, and by nothing."""
    rewards, groups = torch.tensor([[1.0], [0.0], [10.0], [0.0]]), torch.tensor([0, 0, 1, 1])

    def scaled(scale: str) -> list[float]:
        return scaled_advantages(rewards, torch.ones(1), groups, scale=scale).advantages.tolist()

    assert scaled("group") == pytest.approx([0.707, -0.707, 0.707, -0.707], abs=1e-3)
    assert scaled("batch") == pytest.approx([0.5 / 4.856, -0.5 / 4.856, 5 / 4.856, -5 / 4.856], abs=1e-3)
    assert scaled("none") == [0.5, -0.5, 5.0, -5.0]
    with pytest.raises(ValueError, match="known: group, batch, none"):
        scaled("groups")


def test_an_answer_that_nobody_judged_gets_zero_and_its_peers_do_without_it() -> None:
    rewards, groups = torch.tensor([math.nan, 1.0, 3.0, math.nan, 5.0]), torch.tensor([0, 0, 0, 1, 1])
    assert leave_one_out(rewards, groups).tolist() == [0.0, -2.0, 2.0, 0.0, 0.0]
    assert scaled_advantages(rewards[:, None], torch.ones(1), groups, scale="none").advantages.tolist() == [0.0, -1.0, 1.0, 0.0, 0.0]


def test_the_examples_in_the_docstrings_are_right() -> None:
    path = list(asyncrl.algorithms.__path__)
    names = [module.name for module in pkgutil.walk_packages(path, "asyncrl.algorithms.")]
    results = [doctest.testmod(importlib.import_module(name)) for name in names]
    assert sum(result.attempted for result in results) > 20
    assert not sum(result.failed for result in results)
