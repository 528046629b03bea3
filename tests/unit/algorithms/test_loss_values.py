"""Losses, gradients and metrics of single tokens and rows, by hand from the formulas of the papers."""

import math
from collections.abc import Mapping
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from asyncrl.algorithms.losses import POLICY_LOSSES, PolicyRows, loss_options
from asyncrl.algorithms.losses.dppo_kl import binary_kl
from asyncrl.metrics import Metrics, scalars


def loss(
    name: str, rows: PolicyRows, settings: Mapping[str, object] | None = None
) -> tuple[list[list[float]], list[list[float]], dict[str, float]]:
    """Token losses, their gradient, metrics."""
    leaf = rows.log_probs.clone().requires_grad_()
    kind = POLICY_LOSSES[name]
    policy = kind.function(replace(rows, log_probs=leaf), loss_options(name, settings or {}))
    (grad,) = torch.autograd.grad(policy.losses.sum(), leaf)
    return policy.losses.tolist(), grad.tolist(), numbers(policy.metrics)


def numbers(metrics: Metrics) -> dict[str, float]:
    return {name.removeprefix("actor/"): value for name, value in scalars(metrics).items()}


def row(ratios: list[float], advantages: list[float], old: float = -1.0, mask: list[int] | None = None) -> PolicyRows:
    """One row whose tokens have these ratios to an old log-prob."""
    before = torch.full((1, len(ratios)), old, dtype=torch.float64)
    now = before + torch.tensor([ratios], dtype=torch.float64).log()
    return PolicyRows(now, before, torch.tensor([advantages], dtype=torch.float64), torch.tensor([mask or [1] * len(ratios)]))


def near(*values: float) -> object:
    return [pytest.approx(list(values))]


def test_gspo_clips_the_geometric_mean_and_gives_each_token_the_slope_of_the_row() -> None:
    # The geometric mean of 2, 0.5 and 1.331 is 1.1.
    values, grads, found = loss("gspo", row([2.0, 0.5, 1.331], [1.0] * 3))
    assert values == near(-1.1, -1.1, -1.1)
    assert grads == near(-1.1, -1.1, -1.1)
    assert found["pg_clipfrac"] == 0.0
    values, grads, found = loss("gspo", row([2.0, 0.5, 1.331], [1.0] * 3), {"clip_ratio_high": 0.05})
    assert (values, grads, found["pg_clipfrac"]) == (near(-1.05, -1.05, -1.05), [[0.0] * 3], 1.0)
    assert found["ppo_kl"] == pytest.approx(-math.log(1.331) / 3)


def test_gspo_bounds_a_row_that_ran_away() -> None:
    values, grads, _ = loss("gspo", row([math.exp(12)] * 2, [-1.0] * 2))
    assert values == near(math.exp(10), math.exp(10))
    assert grads == [[0.0, 0.0]]


def test_sapo_opens_its_gate_by_the_sign_of_the_advantage() -> None:
    def gate(ratio: float, tau: float) -> float:
        return 4 / tau / (1 + math.exp(-tau * (ratio - 1)))

    values, grads, found = loss("sapo", row([1.5, 1.5, 1.0], [1.0, -1.0, 2.0]), {"tau_pos": 1.0, "tau_neg": 2.0})
    assert values == near(-gate(1.5, 1.0), gate(1.5, 2.0), -4.0)
    assert grads[0][2] == pytest.approx(-2.0), "at a ratio of 1 the slope is that of the plain ratio"
    assert (found["pg_clipfrac"], found["pg_clipfrac_lower"]) == (0.0, 0.0)
    assert POLICY_LOSSES["sapo"].loss_agg_mode == "seq-mean-token-mean"


def test_cispo_clips_the_weight_and_keeps_every_gradient() -> None:
    values, grads, found = loss("cispo", row([3.0, 1.1, 0.5], [1.0, -2.0, 1.0], old=-2.0))
    now = [-2 + math.log(ratio) for ratio in (3.0, 1.1, 0.5)]
    assert values == near(-1.2 * now[0], 2 * 1.1 * now[1], -0.8 * now[2])
    assert grads == near(-1.2, 2.2, -0.8)
    assert found["pg_clipfrac"] == pytest.approx(2 / 3)


def test_gpg_is_a_log_prob_times_an_advantage() -> None:
    values, grads, found = loss("gpg", row([1.5, 0.5], [1.0, -3.0]))
    assert values == near(-(math.log(1.5) - 1), 3 * (math.log(0.5) - 1))
    assert grads == near(-1.0, 3.0)
    assert found == {}


def test_dro_pulls_to_the_old_policy() -> None:
    values, grads, found = loss("dro", row([math.exp(0.5)], [2.0]), {"dro_beta": 0.4})
    assert values == near(-(2 * -0.5 - 0.2 * 0.25))
    assert grads == near(-(2 - 0.4 * 0.5))
    assert found == {"ppo_kl": pytest.approx(-0.5)}


def test_geo_mean_bounds_log_ratios_on_the_side_where_that_is_pessimistic() -> None:
    settings = {"clip_ratio_low": 0.2, "clip_ratio_high": 0.4}
    # A > 0: at most 0.4 each; A < 0: at least -0.2 each.
    values, _, found = loss("geo_mean", row([math.exp(1.0), math.exp(-1.0)], [1.0] * 2), settings)
    assert values == near(-math.exp(-0.3), -math.exp(-0.3))
    assert (found["pg_clipfrac"], found["pg_clipfrac_lower"]) == (1.0, 0.0)
    values, grads, found = loss("geo_mean", row([math.exp(1.0), math.exp(-1.0)], [-1.0] * 2), settings)
    assert values == near(math.exp(0.4), math.exp(0.4))
    assert grads[0][1] == 0.0
    assert (found["pg_clipfrac"], found["pg_clipfrac_lower"]) == (0.0, 1.0)


def test_geo_mean_takes_its_means_over_the_mask_alone() -> None:
    values, _, _ = loss("geo_mean", row([1.0, 1.0, 9.0, 9.0], [1.0, 1.0, 10.0, 10.0], mask=[1, 1, 0, 0]))
    assert values == [[-1.0, -1.0, 0.0, 0.0]]
    weighted = row([1.0, 1.0], [1.0, 1.0])
    weighted = PolicyRows(
        weighted.log_probs, weighted.old_log_probs, weighted.advantages, weighted.response_mask, torch.tensor([[4.0, 0.25]])
    )
    assert loss("geo_mean", weighted)[0] == near(-1.0, -1.0)


@pytest.mark.parametrize(
    ("advantage", "now", "kept"),
    [(1.0, 0.69, True), (1.0, 0.71, False), (1.0, 0.1, True), (-1.0, 0.31, True), (-1.0, 0.29, False), (-1.0, 0.9, True)],
)
def test_dppo_tv_keeps_a_token_while_its_probability_moved_little_in_the_trained_direction(
    advantage: float, now: float, kept: bool
) -> None:
    values, grads, found = loss("dppo_tv", row([now / 0.5], [advantage], old=math.log(0.5)))
    assert (values != [[0.0]]) == (grads != [[0.0]]) == kept
    assert found["pg_clipfrac"] == 1.0 - kept
    if kept:
        assert grads == near(-advantage * now / 0.5)


def test_dppo_bounds_its_weight_by_c() -> None:
    values, grads, found = loss("dppo_tv", row([4.0], [1.0], old=math.log(0.01)))
    assert values == near(-3.0 * math.log(0.04))
    assert grads == near(-3.0)
    assert found["pg_clipfrac_lower"] == 1.0


def test_dppo_kl_keeps_what_is_near_or_on_its_way_back() -> None:
    divergence = 0.5 * math.log(0.5 / 0.8) + 0.5 * math.log(0.5 / 0.2)
    found = binary_kl(torch.tensor(math.log(0.5)), torch.tensor(math.log(0.8)))
    assert float(found) == pytest.approx(divergence)
    for advantage, bound, kept in ((1.0, divergence + 0.01, 1), (1.0, divergence - 0.01, 0), (-1.0, divergence - 0.01, 1)):
        settings = {"clip_ratio_high": bound, "clip_ratio_low": bound}
        assert loss("dppo_kl", row([1.6], [advantage], old=math.log(0.5)), settings)[2]["pg_clipfrac"] == 1 - kept


def test_the_binary_kl_of_a_certain_token_is_finite() -> None:
    certain = torch.tensor([0.0, 0.0, math.log(0.5)])
    found = binary_kl(certain, torch.tensor([0.0, math.log(0.5), 0.0]))
    assert found[0] == 0.0
    assert float(found[1]) == pytest.approx(math.log(2))
    assert 10 < float(found[2]) < math.inf


def test_trls_clip_caps_the_ratio_for_both_signs_and_reports_each_apart() -> None:
    ratios, advantages = [3.0, 3.0, 0.5, 0.5], [1.0, -1.0, 1.0, -1.0]
    values, grads, found = loss("grpo", row(ratios, advantages), {"delta": 2.0, "epsilon": 0.2, "epsilon_high": 0.3})
    assert values == near(-1.3, 2.0, -0.5, 0.8)
    assert grads == near(0.0, 0.0, -0.5, 0.0)
    assert found == pytest.approx(
        {
            "clip_ratio/low_mean": 0.25,
            "clip_ratio/low_min": 0.25,
            "clip_ratio/high_mean": 0.25,
            "clip_ratio/high_max": 0.25,
            "clip_ratio/region_mean": 0.5,
            "ppo_kl": -(2 * math.log(3) + 2 * math.log(0.5)) / 4,
        }
    )


def test_trls_clip_above_the_trust_region_is_the_dual_clip_of_vanilla() -> None:
    generator = torch.Generator().manual_seed(4)
    rows = row((torch.rand(40, generator=generator) * 4 + 0.1).tolist(), torch.randn(40, generator=generator).tolist())
    trl = loss("grpo", rows, {"delta": 2.5, "epsilon": 0.2, "epsilon_high": 0.3})
    vanilla = loss("vanilla", rows, {"clip_ratio_c": 2.5, "clip_ratio_low": 0.2, "clip_ratio_high": 0.3})
    assert trl[0] == near(*vanilla[0][0])
    assert trl[1] == near(*vanilla[1][0])


def test_luspo_is_one_ratio_a_row_on_each_of_its_tokens() -> None:
    values, grads, found = loss("luspo", row([2.0, 0.5, 1.331], [1.0] * 3))
    assert values == near(-1.1, -1.1, -1.1)
    assert grads == near(-1.1, -1.1, -1.1)
    assert found["clip_ratio/region_mean"] == 0.0
    assert POLICY_LOSSES["luspo"].loss_agg_mode == "seq-mean-token-sum"


def test_vespo_weighs_a_row_by_a_gamma_of_the_product_of_its_ratios() -> None:
    rows = row([2.0, 0.75], [1.0, 1.0])
    phi = 1.5**2 * math.exp(3 * (1 - 1.5))
    values, grads, found = loss("vespo", rows)
    assert values == near(*(-phi * (math.log(ratio) - 1) for ratio in (2.0, 0.75)))
    assert grads == near(-phi, -phi)
    assert found["vespo/phi_seq_mean"] == pytest.approx(phi)
    weighted = replace(rows, advantages=-rows.advantages, rollout_is_weights=tensor([0.5, 1.0]))
    negative = 0.75**3 * math.exp(2 * (1 - 0.75))
    assert loss("vespo", weighted)[1] == near(negative, negative)
    assert loss("vespo", row([1.0], [1.0]))[1] == near(-1.0)


def tensor(values: list[float]) -> Tensor:
    return torch.tensor([values], dtype=torch.float64)
