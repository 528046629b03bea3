"""KL estimates and KL in the reward."""

import math

import pytest
import torch

from asyncrl.algorithms.kl import KL_TYPES, kl_penalty
from asyncrl.algorithms.kl_in_reward import AdaptiveKL, kl_controller, penalised_rewards, row_kl
from asyncrl.metrics import scalars


def value_and_slope(d: float, name: str, dtype: torch.dtype = torch.float64) -> tuple[float, float]:
    """At ``log_prob - ref = d``."""
    log_prob = torch.tensor([-1.0 + d], dtype=dtype, requires_grad=True)
    value = kl_penalty(log_prob, torch.tensor([-1.0], dtype=dtype), name)
    (slope,) = torch.autograd.grad(value.sum(), log_prob)
    return value.item(), slope.item()


@pytest.mark.parametrize(
    ("name", "value", "slope"),
    [
        ("k1", -0.5, 1.0),
        ("kl", -0.5, 1.0),
        ("abs", 0.5, -1.0),
        ("k2", 0.125, -0.5),
        ("mse", 0.125, -0.5),
        ("k3", math.exp(0.5) - 1.5, 1 - math.exp(0.5)),
        ("low_var_kl", math.exp(0.5) - 1.5, 1 - math.exp(0.5)),
    ],
)
def test_values_and_gradients_half_a_nat_below_the_reference(name: str, value: float, slope: float) -> None:
    assert value_and_slope(-0.5, name) == pytest.approx((value, slope))
    assert value_and_slope(-0.5, f"{name}+") == pytest.approx((value, -0.5))


@pytest.mark.parametrize("name", [name for name in KL_TYPES if not name.endswith("+")])
def test_gradients_equal_finite_differences(name: str) -> None:
    log_probs = torch.linspace(-2.5, 9.0, 20, dtype=torch.float64, requires_grad=True)  # k3 stays below its bound
    reference = torch.zeros(20, dtype=torch.float64)
    assert torch.autograd.gradcheck(lambda x: kl_penalty(x, reference, name), (log_probs,))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", ["k3", "low_var_kl"])
def test_the_bound_of_k3_limits_the_value_and_not_the_pull(name: str, dtype: torch.dtype) -> None:
    assert value_and_slope(-5.0, name, dtype) == pytest.approx((10.0, 1 - math.exp(5)), rel=1e-5)
    for d in (-80.0, -25.0, -3.0):
        value, slope = value_and_slope(d, name, dtype)
        assert value == 10.0
        assert -math.inf < slope < -1
    for d in (12.0, 25.0, 200.0):
        value, slope = value_and_slope(d, name, dtype)
        assert value == 10.0
        assert 0.9 < slope <= 1.0


def test_k3_is_never_negative() -> None:
    generator = torch.Generator().manual_seed(0)
    pairs = torch.randn(2, 10_000, generator=generator, dtype=torch.float64) * 4
    assert bool((kl_penalty(pairs[0], pairs[1], "k3") >= 0).all())


@pytest.mark.parametrize("name", ["", "+", "full", "k4", "k3++", "K3"])
def test_unknown_names_are_refused_with_the_known_ones(name: str) -> None:
    with pytest.raises(ValueError, match=r"low_var_kl\+"):
        kl_penalty(torch.zeros(1), torch.zeros(1), name)


def test_the_reward_loses_beta_times_kl_on_trainable_tokens_only() -> None:
    mask = torch.tensor([[1, 0, 1, 0], [0, 0, 0, 0]])
    old = torch.tensor([[-1.0, math.nan, -2.0, math.inf]] * 2)
    reference = torch.tensor([[-1.5, 0.0, -1.0, math.nan]] * 2)
    scores = torch.tensor([[0.0, 0.0, 1.0, 0.0], [0.0, 0.0, 0.0, 3.0]])
    rewards, metrics = penalised_rewards(scores, old, reference, mask, coefficient=0.1, kl_type="k1")
    assert rewards.tolist() == [pytest.approx([-0.05, 0.0, 1.1, 0.0]), [0.0, 0.0, 0.0, 3.0]]
    assert scalars(metrics) == {"actor/reward_kl_penalty": pytest.approx(-0.25 / 2), "actor/reward_kl_penalty_coeff": 0.1}
    totals, means = row_kl(old, reference, mask, "k1")
    assert totals.tolist() == pytest.approx([-0.5, 0.0])
    assert means.tolist() == pytest.approx([-0.25, 0.0])


def test_the_adaptive_coefficient_moves_at_most_a_fifth_of_rows_per_horizon() -> None:
    beta = AdaptiveKL(1.0, target=0.1, horizon=100)
    assert beta.updated(9.0, 50).coefficient == pytest.approx(1.1)
    assert beta.updated(0.0, 50).coefficient == pytest.approx(0.9)
    assert beta.updated(0.11, 50).coefficient == pytest.approx(1.05)
    assert kl_controller("fixed", 0.3).updated(9.0, 50).coefficient == 0.3
    with pytest.raises(ValueError, match="fixed, adaptive"):
        kl_controller("zzz", 0.1)
    with pytest.raises(ValueError, match="horizon"):
        kl_controller("adaptive", 0.1, 0.1, 0)
