"""The clipped policy loss."""

import math

import pytest
import torch

from asyncrl.algorithms.losses.policy_loss import PolicyRows
from asyncrl.algorithms.losses.vanilla import VanillaOptions, vanilla
from asyncrl.metrics import scalars

CLIP = VanillaOptions(0.2, 0.2, 3.0)


def one(ratio: float, advantage: float, clip: VanillaOptions = CLIP) -> tuple[float, dict[str, float]]:
    rows = PolicyRows(torch.tensor([[math.log(ratio)]]), torch.zeros(1, 1), torch.tensor([[advantage]]), torch.ones(1, 1))
    policy = vanilla(rows, clip)
    return float(policy.losses), scalars(policy.metrics)


@pytest.mark.parametrize(
    ("ratio", "advantage", "clip", "loss", "clipped", "lower"),
    [
        (10.0, -1.0, CLIP, 3.0, 0.0, 1.0),
        (10.0, -1.0, VanillaOptions(0.2, 0.2, 5.0), 5.0, 0.0, 1.0),
        (10.0, -1.0, VanillaOptions(0.2, 0.2, 100.0), 10.0, 0.0, 0.0),
        (10.0, 1.0, CLIP, -1.2, 1.0, 0.0),
        (1.25, 1.0, VanillaOptions(0.2, 0.28, 3.0), -1.25, 0.0, 0.0),
        (1.25, 1.0, CLIP, -1.2, 1.0, 0.0),
        (0.5, 1.0, CLIP, -0.5, 0.0, 0.0),
        (0.5, -1.0, CLIP, 0.8, 1.0, 0.0),
        (0.5, -1.0, VanillaOptions(10.0, 0.2, 3.0), 0.5, 0.0, 0.0),
        (1.0, 2.0, CLIP, -2.0, 0.0, 0.0),
    ],
)
def test_loss_and_clip_fractions_of_one_token(
    ratio: float, advantage: float, clip: VanillaOptions, loss: float, clipped: float, lower: float
) -> None:
    value, metrics = one(ratio, advantage, clip)
    assert value == pytest.approx(loss, rel=1e-5)
    assert metrics["actor/pg_clipfrac"] == clipped
    assert metrics["actor/pg_clipfrac_lower"] == lower
    assert metrics["actor/ppo_kl"] == pytest.approx(-math.log(ratio), rel=1e-5)


@pytest.mark.parametrize("bad", [(-0.1, 0.2, 3.0), (0.2, -0.1, 3.0), (0.2, 0.2, 1.0)])
def test_a_trust_region_that_makes_no_sense_is_refused(bad: tuple[float, float, float]) -> None:
    with pytest.raises(ValueError, match="clip_ratio"):
        VanillaOptions(*bad)


def test_a_ratio_beyond_float_range_stays_finite() -> None:
    loss, _ = one(1.0, 1.0)
    rows = PolicyRows(torch.full((1, 1), 500.0), torch.zeros(1, 1), torch.full((1, 1), -1.0), torch.ones(1, 1))
    far = vanilla(rows, VanillaOptions(0.2, 0.2, 1e12))
    assert loss == -1.0
    assert float(far.losses) == pytest.approx(math.exp(20), rel=1e-4)
