"""What the configuration says of the objective is what the policy minimises: each option reaches its term."""

import math
from pathlib import Path
from typing import Any

import pytest
import torch

from asyncrl.algorithms.aggregation import Denominators
from asyncrl.algorithms.losses import PolicyRows
from asyncrl.algorithms.objective import policy_objective
from asyncrl.config.load import assembled, load_config
from asyncrl.config.schema import Config
from asyncrl.launch.models import policy_settings
from asyncrl.metrics import scalars


def minimised(config: Config, ratio: float, advantage: float) -> dict[str, float]:
    """The metrics of two rows, of one token and of three, whose ratios and advantages are all the same."""
    settings = policy_settings(config)
    mask = torch.tensor([[1, 0, 0], [1, 1, 1]])
    old = torch.full((2, 3), -3.0, dtype=torch.float64)
    rows = PolicyRows(old + math.log(ratio), old, torch.full_like(old, advantage), mask)
    entropy = torch.where(mask.bool(), torch.tensor([[2.0], [4.0]]), 9.0)
    loss, metrics = policy_objective(rows, entropy, old, settings.objective, Denominators.of(mask, settings.loss_scale_factor))
    return scalars(metrics) | {"total": float(loss)}


def configured(data: dict[str, Any] | None = None, **actor: Any) -> Config:
    """The defaults with these options of the actor."""
    return assembled({"actor_rollout_ref": {"rollout": {"n": 2}, "actor": actor}, "data": data or {}}, "x").config


@pytest.mark.parametrize("c", [3.0, 5.0, 100.0])
def test_the_dual_clip_of_a_configuration_file_bounds_the_loss(c: float, tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text(f"defaults: [quickstart, _self_]\nactor_rollout_ref: {{actor: {{clip_ratio_c: {c}}}}}\n")
    found = minimised(load_config([f"config={tmp_path / 'mine.yaml'}"]).config, ratio=10.0, advantage=-1.0)
    assert found["actor/pg_loss"] == pytest.approx(min(c, 10.0))
    assert found["actor/pg_clipfrac_lower"] == float(c < 10)


@pytest.mark.parametrize(
    ("actor", "ratio", "advantage", "expected"),
    [
        ({}, 10.0, -1.0, 3.0),
        ({"clip_ratio_c": 5}, 10.0, -1.0, 5.0),
        ({}, 10.0, 1.0, -1.2),
        ({"clip_ratio_c": 5}, 10.0, 1.0, -1.2),
        ({"clip_ratio": 0.3}, 10.0, 1.0, -1.3),
        ({"clip_ratio_high": 0.28}, 10.0, 1.0, -1.28),
        ({"clip_ratio_low": 0.1}, 0.5, -1.0, 0.9),
        ({"clip_ratio_low": 0.1}, 0.5, 1.0, -0.5),
        ({"loss_agg_mode": "token-sum"}, 10.0, -1.0, 12.0),
        ({"loss_agg_mode": "seq-mean-token-sum"}, 10.0, -1.0, 6.0),
        ({"loss_agg_mode": "seq-mean-token-mean"}, 10.0, -1.0, 3.0),
        ({"loss_agg_mode": "seq-mean-token-sum-norm", "loss_scale_factor": 8}, 10.0, -1.0, 0.75),
    ],
)
def test_clips_and_aggregation_reach_the_policy_loss(actor: dict[str, Any], ratio: float, advantage: float, expected: float) -> None:
    assert minimised(configured(**actor), ratio, advantage)["actor/pg_loss"] == pytest.approx(expected)


def test_without_a_factor_of_its_own_the_normalised_sum_is_divided_by_the_limit_of_responses() -> None:
    config = configured({"max_response_length": 4}, loss_agg_mode="seq-mean-token-sum-norm")
    assert minimised(config, 10.0, -1.0)["actor/pg_loss"] == pytest.approx(1.5)


@pytest.mark.parametrize(
    ("kl_type", "value"),
    [("k1", math.log(2)), ("abs", math.log(2)), ("k2", math.log(2) ** 2 / 2), ("k3+", 0.5 + math.log(2) - 1), ("kl", math.log(2))],
)
def test_entropy_and_kl_reach_the_objective_with_their_coefficients_and_signs(kl_type: str, value: float) -> None:
    """Twice as likely as under the reference; the mean entropy of the four tokens is (2 + 3 * 4) / 4 = 3.5."""
    config = configured(kl_loss_type=kl_type, kl_loss_coef=0.5, entropy_coeff=0.25, use_kl_loss=True)
    found = minimised(config, ratio=2.0, advantage=0.0)
    assert found["actor/kl_loss"] == pytest.approx(value)
    assert found["total"] == pytest.approx(0.5 * value - 0.25 * 3.5)
    assert minimised(configured(), ratio=2.0, advantage=0.0)["total"] == 0.0
