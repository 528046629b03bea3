"""Every policy loss: gradients, what lies under the mask, and that no cut of a mini-batch changes a number."""

import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings, strategies as st

from asyncrl.algorithms.aggregation import Denominators, aggregate
from asyncrl.algorithms.losses import POLICY_LOSSES, PolicyLoss, PolicyRows, as_policy_loss, loss_options
from asyncrl.algorithms.objective import ObjectiveConfig, policy_objective
from asyncrl.algorithms.ranks import alone
from asyncrl.metrics import scalars
from tests.unit.algorithms.mini_batch import LINEAR, VARIANTS, Batch, make, prepare, ready, run

SMOOTH = [name for name in VARIANTS if name not in (*LINEAR, "gspo")]


def prepared(variant: str, batch: Batch) -> Batch:
    mode, options = VARIANTS[variant]
    config = ObjectiveConfig(policy_loss=POLICY_LOSSES[mode], options=options)
    return ready(batch, prepare(batch, config, alone)) if config.needs_preparation else batch


@pytest.mark.parametrize("variant", SMOOTH)
def test_gradients_equal_finite_differences(variant: str) -> None:
    mode, options = VARIANTS[variant]
    rows = prepared(variant, make()).rows
    log_probs = rows.log_probs.clone().requires_grad_()
    assert torch.autograd.gradcheck(lambda x: POLICY_LOSSES[mode].function(replace(rows, log_probs=x), options).losses, (log_probs,))


def test_the_gradient_of_gspo_equals_finite_differences_once_a_row_is_averaged() -> None:
    rows = make().rows
    mask, of = rows.response_mask, Denominators.of(rows.response_mask, 1)
    kind, options = POLICY_LOSSES["gspo"], VARIANTS["gspo"][1]
    log_probs = rows.log_probs.clone().requires_grad_()

    def total(x: torch.Tensor) -> torch.Tensor:
        return aggregate(kind.function(replace(rows, log_probs=x), options).losses, mask, "seq-mean-token-mean", of)

    assert torch.autograd.gradcheck(total, (log_probs,))


@pytest.mark.parametrize("variant", LINEAR)
def test_the_weight_of_a_log_prob_has_no_gradient_of_its_own(variant: str) -> None:
    mode, options = VARIANTS[variant]
    rows = prepared(variant, make()).rows
    leaf = rows.log_probs.clone().requires_grad_()
    losses = POLICY_LOSSES[mode].function(replace(rows, log_probs=leaf), options).losses
    (grad,) = torch.autograd.grad(losses.sum(), leaf)
    torch.testing.assert_close(grad * rows.log_probs, losses.detach())
    moved = POLICY_LOSSES[mode].function(replace(rows, log_probs=leaf.detach() + 1e-6), options).losses
    slope = (moved - losses.detach()) / 1e-6
    weighs = variant != "gpg" and not torch.allclose(slope, grad, rtol=1e-3)
    assert weighs == (variant not in ("gpg", "bypass reinforce")), "the weight moves with the log-prob, unless it was prepared"


@pytest.mark.parametrize("junk", [math.nan, math.inf, -math.inf, 1e30])
@pytest.mark.parametrize("variant", VARIANTS)
def test_what_lies_under_the_mask_reaches_no_value_gradient_or_metric(variant: str, junk: float) -> None:
    weights = VARIANTS[variant][0] != "bypass_mode"
    clean = make(weights=weights)
    everyone = [list(range(len(clean.keys)))]
    terms = {"entropy_coeff": 0.1, "use_kl_loss": True, "kl_loss_coef": 0.2}
    expected, found = (run(variant, batch, everyone, 6, **terms) for batch in (clean, clean.filled(junk)))
    assert found.loss == expected.loss
    assert found.metrics == expected.metrics
    for key, grad in expected.grads.items():
        assert torch.equal(found.grads[key], grad)
        assert torch.isfinite(grad).all()


@pytest.mark.parametrize("variant", VARIANTS)
def test_padding_of_zeros_lets_no_junk_of_another_column_through(variant: str) -> None:
    clean = make()
    mask, zero = clean.rows.response_mask.bool(), clean.filled(0.0)
    rows = replace(zero.rows, advantages=torch.where(mask, clean.rows.advantages, math.nan))
    expected, found = (run(variant, batch, [list(range(6))], 6) for batch in (clean, replace(zero, rows=rows)))
    assert all(torch.equal(found.grads[key], grad) for key, grad in expected.grads.items())


@pytest.mark.parametrize("variant", VARIANTS)
@settings(max_examples=6, deadline=None)
@given(data=st.data())
def test_cut_ranks_row_order_padding_and_junk_change_no_loss_gradient_or_metric(variant: str, data: st.DataObject) -> None:
    count, seed = data.draw(st.integers(1, 9)), data.draw(st.integers(0, 999))
    batch = make(seed, count, data.draw(st.integers(1, 6)), weights=VARIANTS[variant][0] != "bypass_mode")
    mode = data.draw(st.sampled_from(["token-mean", "seq-mean-token-mean", "seq-mean-token-sum-norm"]))
    terms = {"loss_agg_mode": mode, "use_kl_loss": True}
    expected = run(variant, batch, [list(range(count))], count, **terms)
    order = data.draw(st.permutations(range(count)))
    ranks = data.draw(st.integers(1, min(3, count)))
    width = batch.rows.log_probs.shape[1]
    dirty = batch.filled(data.draw(st.sampled_from([math.nan, math.inf, 1e30])), wider=data.draw(st.integers(0, 2)))
    found = run(variant, dirty, [order[rank::ranks] for rank in range(ranks)], data.draw(st.integers(1, 3)), **terms)
    assert found.loss == pytest.approx(expected.loss, abs=1e-12)
    assert scalars(found.metrics) == pytest.approx(scalars(expected.metrics), abs=1e-12, nan_ok=True)
    for key, grad in expected.grads.items():
        torch.testing.assert_close(found.grads[key][:width], grad)
        assert not bool(found.grads[key][width:].any())


@pytest.mark.parametrize("variant", VARIANTS)
def test_no_trainable_token_is_a_loss_of_zero_with_a_zero_gradient(variant: str) -> None:
    empty = make(count=2)
    empty = replace(empty, rows=replace(empty.rows, response_mask=torch.zeros_like(empty.rows.response_mask))).filled(math.nan)
    found = run(variant, empty, [[0], [1]], 1)
    assert found.loss == 0.0
    assert all(not bool(grad.any()) for grad in found.grads.values())


@pytest.mark.parametrize(("count", "width"), [(2, 0), (0, 3)])
@pytest.mark.parametrize("variant", VARIANTS)
def test_rows_without_a_response_and_ranks_without_a_row_are_harmless(variant: str, count: int, width: int) -> None:
    found = run(variant, make(3, count, width, weights=True), [list(range(count)), []], 1, use_kl_loss=True)
    assert found.loss == 0.0
    full = make(3, 4, 3)
    assert run(variant, full, [[0, 1, 2, 3], []], 2).loss == pytest.approx(run(variant, full, [[0, 1, 2, 3]], 4).loss)


@pytest.mark.parametrize("variant", VARIANTS)
def test_float32_stays_within_a_hundred_thousandth_of_float64(variant: str) -> None:
    weights = VARIANTS[variant][0] != "bypass_mode"
    everyone = [list(range(6))]
    wide, narrow = (run(variant, make(weights=weights, dtype=dtype), everyone, 2) for dtype in (torch.float64, torch.float32))
    assert narrow.loss == pytest.approx(wide.loss, abs=1e-5, rel=1e-5)
    assert scalars(narrow.metrics) == pytest.approx(scalars(wide.metrics), abs=1e-5, rel=1e-5, nan_ok=True)
    for key, grad in wide.grads.items():
        torch.testing.assert_close(narrow.grads[key].double(), grad, rtol=1e-5, atol=1e-5)


def test_importance_weights_multiply_what_a_loss_has_clipped() -> None:
    batch = make()
    doubled = replace(batch.rows, rollout_is_weights=torch.full_like(batch.rows.log_probs, 2.0))
    for name in ("vanilla", "dppo_tv", "gspo", "sapo", "gpg", "geo_mean", "dro", "cispo", "grpo", "luspo"):
        kind, options = POLICY_LOSSES[name], VARIANTS[name][1]
        plain, twice = (kind.function(rows, options).losses for rows in (batch.rows, doubled))
        torch.testing.assert_close(twice, 2 * plain, msg=name)


def test_options_are_picked_out_of_all_settings_by_the_names_of_the_library() -> None:
    settings = {"clip_ratio_low": 0.1, "clip_ratio_high": None, "tau_neg": 2.0, "loss_agg_mode": "token-mean"}
    assert loss_options("gspo", settings) == POLICY_LOSSES["gspo"].options(0.1, 0.2)
    assert loss_options("sapo", settings).tau_neg == 2.0
    with pytest.raises(ValueError, match=r"'dro'.*dro_beta"):
        loss_options("dro", settings)
    with pytest.raises(ValueError, match="this policy loss takes SapoOptions, got GpgOptions"):
        ObjectiveConfig(policy_loss=POLICY_LOSSES["sapo"], options=loss_options("gpg", {}))


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("vanilla", {"clip_ratio_c": 1.0}),
        ("vanilla", {"clip_ratio_low": -0.1}),
        ("gspo", {"clip_ratio_high": math.nan}),
        ("sapo", {"tau_pos": 0.0}),
        ("dro", {"dro_beta": 0.0}),
        ("clip_cov", {"clip_cov_lb": 5.0}),
        ("clip_cov", {"clip_cov_ratio": 0.0}),
        ("kl_cov", {"kl_cov_ratio": 1.5}),
        ("kl_cov", {"ppo_kl_coef": -1.0}),
        ("bypass_mode", {"clip_ratio_c": 0.5}),
        ("grpo", {"importance_sampling_level": "row"}),
        ("grpo", {"delta": 0.0}),
        ("luspo", {"epsilon": -1.0}),
        ("vespo", {"vespo_lambda_pos": 0.0}),
    ],
)
def test_options_that_make_no_sense_are_refused_by_name(name: str, settings: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=next(iter(settings)).removesuffix("_pos").removesuffix("_c")):
        loss_options(name, settings)


def test_losses_with_a_first_phase_say_so_when_it_was_left_out() -> None:
    rows = make().rows
    for variant in ("clip_cov", "kl_cov", "bypass_mode", "bypass reinforce"):
        mode, options = VARIANTS[variant]
        assert POLICY_LOSSES[mode].needs_preparation(options)
        with pytest.raises(ValueError, match="whole mini-batch"):
            POLICY_LOSSES[mode].function(rows, options)
    for variant in ("vanilla", "bypass sequence"):
        mode, options = VARIANTS[variant]
        assert not POLICY_LOSSES[mode].needs_preparation(options)


def test_a_users_loss_is_a_function_of_rows_and_options() -> None:
    def mine(rows: PolicyRows, options: dict[str, float]) -> PolicyLoss:
        return rows.weighted(-options["scale"] * rows.advantages * rows.clean(rows.log_probs), {})

    kind, batch = as_policy_loss(mine), make()
    assert as_policy_loss(kind) is kind
    config = ObjectiveConfig(policy_loss=kind, options={"scale": 2.0})
    of = Denominators.of(batch.rows.response_mask, 1)
    loss, _ = policy_objective(batch.rows, None, None, config, of)
    assert loss.item() == pytest.approx(2 * run("gpg", batch, [list(range(6))], 6).loss)
    for wrong in (lambda rows: rows, lambda: None, "vanilla", None):
        with pytest.raises(TypeError, match=r"rows, options|not '?(vanilla|None)"):
            as_policy_loss(wrong)
