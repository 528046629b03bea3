"""The clipped policy loss."""

import math

import pytest
import torch
from torch import Tensor

from asyncrl.algorithms.losses.policy_loss import ClipConfig
from asyncrl.algorithms.losses.vanilla import vanilla
from asyncrl.metrics import merge, scalars

CLIP = ClipConfig(0.2, 0.2, 3.0)


def one(ratio: float, advantage: float, clip: ClipConfig = CLIP) -> tuple[float, dict[str, float]]:
    mask = torch.ones(1, 1)
    policy = vanilla(torch.tensor([[math.log(ratio)]]), torch.zeros(1, 1), torch.tensor([[advantage]]), mask, clip)
    return float(policy.losses), scalars(policy.metrics)


@pytest.mark.parametrize(
    ("ratio", "advantage", "clip", "loss", "clipped", "lower"),
    [
        (10.0, -1.0, CLIP, 3.0, 0.0, 1.0),
        (10.0, -1.0, ClipConfig(0.2, 0.2, 5.0), 5.0, 0.0, 1.0),
        (10.0, -1.0, ClipConfig(0.2, 0.2, 100.0), 10.0, 0.0, 0.0),
        (10.0, 1.0, CLIP, -1.2, 1.0, 0.0),
        (1.25, 1.0, ClipConfig(0.2, 0.28, 3.0), -1.25, 0.0, 0.0),
        (1.25, 1.0, CLIP, -1.2, 1.0, 0.0),
        (0.5, 1.0, CLIP, -0.5, 0.0, 0.0),
        (0.5, -1.0, CLIP, 0.8, 1.0, 0.0),
        (0.5, -1.0, ClipConfig(10.0, 0.2, 3.0), 0.5, 0.0, 0.0),
        (1.0, 2.0, CLIP, -2.0, 0.0, 0.0),
    ],
)
def test_loss_and_clip_fractions_of_one_token(
    ratio: float, advantage: float, clip: ClipConfig, loss: float, clipped: float, lower: float
) -> None:
    value, metrics = one(ratio, advantage, clip)
    assert value == pytest.approx(loss, rel=1e-5)
    assert metrics["actor/pg_clipfrac"] == clipped
    assert metrics["actor/pg_clipfrac_lower"] == lower
    assert metrics["actor/ppo_kl"] == pytest.approx(-math.log(ratio), rel=1e-5)


@pytest.mark.parametrize("bad", [(-0.1, 0.2, 3.0), (0.2, -0.1, 3.0), (0.2, 0.2, 1.0)])
def test_a_trust_region_that_makes_no_sense_is_refused(bad: tuple[float, float, float]) -> None:
    with pytest.raises(ValueError, match="clip_ratio"):
        ClipConfig(*bad)


def batch(seed: int = 3, rows: int = 5, width: int = 7) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    old = -torch.rand(rows, width, generator=generator, dtype=torch.float64)
    log_probs = old + torch.randn(rows, width, generator=generator, dtype=torch.float64)
    advantages = torch.randn(rows, 1, generator=generator, dtype=torch.float64).expand(rows, width)
    return log_probs, old, advantages, torch.randint(0, 2, (rows, width), generator=generator)


def test_gradient_equals_finite_differences() -> None:
    log_probs, old, advantages, mask = batch()
    assert torch.autograd.gradcheck(lambda x: vanilla(x, old, advantages, mask, CLIP).losses, (log_probs.requires_grad_(),))


@pytest.mark.parametrize("junk", [math.nan, math.inf, -math.inf, 1e30])
def test_what_lies_under_the_mask_reaches_no_value_and_no_gradient(junk: float) -> None:
    clean = batch()
    mask = clean[3]
    dirty = [torch.where(mask.bool(), tensor, junk) for tensor in clean[:3]]
    grads = []
    for log_probs, old, advantages in (clean[:3], dirty):
        leaf = log_probs.clone().requires_grad_()
        policy = vanilla(leaf, old, advantages, mask, CLIP, rollout_is_weights=torch.where(mask.bool(), 0.5, junk))
        (grad,) = torch.autograd.grad(policy.losses.sum(), leaf)
        grads.append((policy.losses.tolist(), grad.tolist(), policy.metrics))
    assert grads[0] == grads[1]


def test_metrics_do_not_depend_on_the_cut() -> None:
    whole = vanilla(*batch(), CLIP).metrics
    log_probs, old, advantages, mask = batch()
    cuts = [slice(at, at + 2) for at in (0, 2, 4)]
    parts = [vanilla(log_probs[cut], old[cut], advantages[cut], mask[cut], CLIP).metrics for cut in cuts]
    assert scalars(merge(parts)) == pytest.approx(scalars(whole))


def test_importance_weights_multiply_after_the_clip() -> None:
    log_probs, old, advantages, mask = batch()
    weights = torch.full_like(old, 0.5)
    halved = vanilla(log_probs, old, advantages, mask, CLIP, rollout_is_weights=weights).losses
    assert torch.equal(halved, vanilla(log_probs, old, advantages, mask, CLIP).losses * 0.5)


def test_a_ratio_beyond_float_range_stays_finite() -> None:
    loss, _ = one(1.0, 1.0)
    far = vanilla(torch.full((1, 1), 500.0), torch.zeros(1, 1), torch.full((1, 1), -1.0), torch.ones(1, 1), ClipConfig(0.2, 0.2, 1e12))
    assert loss == -1.0
    assert float(far.losses) == pytest.approx(math.exp(20), rel=1e-4)
