"""Importance weights, rejection and off-policy diagnostics."""

import math
from typing import Any

import pytest
import torch
from hypothesis import given, settings, strategies as st
from torch import Tensor

from asyncrl.algorithms.aggregation import Denominators
from asyncrl.algorithms.rollout_correction import (
    Correction,
    RolloutCorrectionOptions,
    denominator_mask,
    effective_sample_size,
    off_policy_metrics,
    rollout_correction,
)
from asyncrl.algorithms.rollout_correction.options import RS_CRITERIA
from asyncrl.metrics import Metrics, merge, scalars
from tests.unit.algorithms.mini_batch import on_ranks


def correct(ratios: list[list[float]], mask: list[list[int]] | None = None, **options: Any) -> tuple[Correction, dict[str, float]]:
    """Correction of tokens with these ratios p_train / p_rollout, and its metrics without their prefix."""
    rollout = torch.full((len(ratios), len(ratios[0])), -1.0, dtype=torch.float64)
    train = rollout + torch.tensor(ratios, dtype=torch.float64).log()
    chosen = torch.ones_like(rollout) if mask is None else torch.tensor(mask)
    found = rollout_correction(train, rollout, chosen, RolloutCorrectionOptions(**options))
    return found, {name.removeprefix("rollout_corr/"): value for name, value in scalars(found.metrics).items()}


def weights(found: Correction) -> list[Any]:
    assert found.rollout_is_weights is not None
    return [pytest.approx(row) for row in found.rollout_is_weights.tolist()]


RATIOS = [[0.5, 2.0, 4.0], [1.0, 0.25, 1.0]]


def test_token_weights_are_truncated_above() -> None:
    found, metrics = correct(RATIOS, rollout_is="token", rollout_is_threshold=1.9)
    assert weights(found) == [[0.5, 1.9, 1.9], [1.0, 0.25, 1.0]]
    assert found.response_mask.tolist() == [[1.0] * 3] * 2
    bounded = [0.5, 1.9, 1.9, 1.0, 0.25, 1.0]
    long, short = 4.3 / 3, 0.75
    mean = sum(bounded) / 6
    expected = {
        "rollout_is_mean": mean,
        "rollout_is_max": 1.9,
        "rollout_is_min": 0.25,
        "rollout_is_std": math.sqrt(sum((weight - mean) ** 2 for weight in bounded) / 6),
        "rollout_is_eff_sample_size": sum(bounded) ** 2 / (6 * sum(weight**2 for weight in bounded)),
        "rollout_is_ratio_fraction_high": 2 / 6,
        "rollout_is_ratio_fraction_low": 2 / 6,  # below 1 / 1.9
        "rollout_is_seq_mean": (long + short) / 2,
        "rollout_is_seq_std": (long - short) / math.sqrt(2),
        "rollout_is_seq_max": long,
        "rollout_is_seq_min": short,
        "rollout_is_seq_max_deviation": long - 1,
        "rollout_is_seq_fraction_high": 0.5,  # (0.5 + 2 + 4) / 3 before truncation
        "rollout_is_seq_fraction_low": 0.0,
    }
    assert {name: metrics[name] for name in expected} == pytest.approx(expected)
    assert "rollout_is_oob_ratio" not in metrics


def test_icepop_sets_weights_outside_its_band_to_zero_and_keeps_their_place() -> None:
    found, metrics = correct(RATIOS, rollout_is="token", rollout_is_threshold="0.4_3")
    assert weights(found) == [[0.5, 2.0, 0.0], [1.0, 0.0, 1.0]]
    assert found.response_mask.tolist() == [[1.0] * 3] * 2
    assert metrics["rollout_is_oob_ratio"] == pytest.approx(2 / 6)


def test_a_sequence_weight_is_the_product_of_its_row() -> None:
    found, metrics = correct([[0.5, 2.0, 9.0], [2.0, 2.0, 1.0]], [[1, 1, 0], [1, 1, 1]], rollout_is="sequence", rollout_is_threshold=3.0)
    assert weights(found) == [[1.0, 1.0, 0.0], [3.0, 3.0, 3.0]]
    assert metrics["rollout_is_max"] == pytest.approx(4.0), "before truncation"
    assert metrics["rollout_is_ratio_fraction_high"] == 0.5


def test_normalised_weights_have_the_mean_one_after_truncation() -> None:
    found, metrics = correct([[1.0, 9.0]], rollout_is="token", rollout_is_threshold=3.0, rollout_is_batch_normalize=True)
    assert weights(found) == [[0.5, 1.5]]
    assert metrics["rollout_is_batch_norm_factor"] == 2.0
    rows, metrics = correct([[2.0, 1.0], [1.0, 1.0]], rollout_is="sequence", rollout_is_threshold=3.0, rollout_is_batch_normalize=True)
    assert weights(rows) == [[4 / 3] * 2, [2 / 3] * 2]


def test_a_band_with_nothing_in_it_gives_zero_weights_and_finite_metrics() -> None:
    found, metrics = correct([[4.0, 5.0]], rollout_is="token", rollout_is_threshold="0.9_1.1", rollout_is_batch_normalize=True)
    assert weights(found) == [[0.0, 0.0]]
    assert metrics["rollout_is_eff_sample_size"] == 0.0
    assert metrics["rollout_is_batch_norm_factor"] == 1.0
    assert all(math.isfinite(value) for name, value in metrics.items() if not name.endswith("_std"))


def test_the_two_thresholds_point_in_opposite_directions() -> None:
    # k1 bounds p_rollout / p_train: a ratio of 1.35 is 0.74 there and below 0.9; one of 0.74 is 1.35 and kept.
    found, metrics = correct([[1.35, 0.74]], rollout_rs="token_k1", rollout_rs_threshold="0.9_1.5")
    assert found.response_mask.tolist() == [[0.0, 1.0]]
    assert found.rollout_is_weights is None
    assert (metrics["rollout_rs_token_k1_fraction_low"], metrics["rollout_rs_token_k1_fraction_high"]) == (0.5, 0.0)


@pytest.mark.parametrize(
    ("criterion", "threshold", "kept"),
    [
        ("token_k1", 2.1, [[1, 1, 0], [1, 0, 1]]),
        ("token_k2", 0.3, [[1, 1, 0], [1, 0, 1]]),  # log(2)^2 / 2 = 0.24, log(4)^2 / 2 = 0.96
        ("token_k3", 0.25, [[1, 0, 0], [1, 0, 1]]),  # r - 1 - log r: 0.19, 0.31, 1.61, 0, 0.64, 0
        ("seq_sum_k1", 3.9, [[0, 0, 0], [0, 0, 0]]),  # both products are a factor 4 away
        ("seq_sum_k1", 4.1, [[1, 1, 1], [1, 1, 1]]),
        ("seq_mean_k1", "0.6_1.5", [[1, 1, 1], [0, 0, 0]]),  # 4^(-1/3) = 0.63 and 4^(1/3) = 1.59
        ("seq_mean_k2", 0.4, [[0, 0, 0], [1, 1, 1]]),
        ("seq_max_k2", 0.95, [[0, 0, 0], [0, 0, 0]]),
        ("seq_max_k3", 1.0, [[0, 0, 0], [1, 1, 1]]),
        ("seq_sum_k3", 0.7, [[0, 0, 0], [1, 1, 1]]),
        ("token_k3,seq_mean_k2", "0.7,0.4", [[0, 0, 0], [1, 1, 1]]),
    ],
)
def test_every_level_and_estimator_by_hand(criterion: str, threshold: float | str, kept: list[list[int]]) -> None:
    found, metrics = correct(RATIOS, rollout_rs=criterion, rollout_rs_threshold=threshold)
    assert found.response_mask.tolist() == kept
    assert metrics["rollout_rs_masked_fraction"] == pytest.approx(1 - sum(map(sum, kept)) / 6)


def test_a_sequence_maximum_looks_at_trainable_tokens_alone() -> None:
    found, _ = correct([[1.0, 99.0]], [[1, 0]], rollout_rs="seq_max_k2", rollout_rs_threshold=0.1)
    assert found.response_mask.tolist() == [[1, 0]]


def test_rejection_leaves_weights_alone_and_the_denominator_to_an_option() -> None:
    options: dict[str, Any] = {"rollout_is": "token", "rollout_rs": "token_k1", "rollout_rs_threshold": 1.5}
    found, _ = correct([[2.0, 1.0]], **options)
    assert weights(found) == [[2.0, 1.0]]
    loss_mask = torch.ones(1, 2)
    for kept, tokens in ((False, 1), (True, 2)):
        chosen = RolloutCorrectionOptions(rejected_in_denominator=kept, **options)
        assert Denominators.of(denominator_mask(found.response_mask, loss_mask, chosen), 1).tokens == tokens


def test_off_policy_figures_by_hand() -> None:
    train, rollout = torch.tensor([[-2.0, -1.0], [-0.5, math.nan]]), torch.tensor([[-1.0, -1.0], [-1.0, math.inf]])
    found = scalars(off_policy_metrics(train.double(), rollout.double(), torch.tensor([[1, 1], [1, 0]])))
    assert {name.removeprefix("rollout_corr/"): value for name, value in found.items()} == pytest.approx(
        {
            "kl": (1.0 - 0.5) / 3,
            "k3_kl": (math.exp(-1) + math.exp(0.5) - 1 - 0.5) / 3,
            "chi2_token": (math.exp(-2) + 1 + math.exp(1)) / 3 - 1,
            "chi2_seq": (math.exp(-2) + math.exp(1)) / 2 - 1,
            "training_ppl": (math.exp(1.5) + math.exp(0.5)) / 2,
            "training_log_ppl": 1.0,
            "rollout_ppl": math.e,
            "rollout_log_ppl": 1.0,
            "log_ppl_diff": 0.0,
            "log_ppl_abs_diff": 0.5,
            "log_ppl_diff_max": 0.5,
            "log_ppl_diff_min": -0.5,
            "ppl_ratio": (math.exp(0.5) + math.exp(-0.5)) / 2,
        }
    )


def test_one_broken_token_shows() -> None:
    found = scalars(off_policy_metrics(torch.tensor([[24.0, -1.0]]), torch.tensor([[-1.0, -1.0]]), torch.ones(1, 2)))
    assert found["rollout_corr/k3_kl"] == pytest.approx((math.exp(25) - 26) / 2, rel=1e-5)
    assert found["rollout_corr/chi2_token"] == pytest.approx(math.exp(40) / 2, rel=1e-5)


def test_rows_that_fill_up_a_batch_count_nowhere() -> None:
    train, mask = torch.full((4, 3), -2.0), torch.tensor([[1, 1, 0]] + [[0, 0, 0]] * 3)
    found = scalars(off_policy_metrics(train, train - 0.5, mask))
    assert found["rollout_corr/training_ppl"] == pytest.approx(math.exp(2))
    padded = scalars(off_policy_metrics(train, train - 0.5, mask, count_empty_rows=True))
    assert padded["rollout_corr/training_ppl"] == pytest.approx((math.exp(2) + 3) / 4), "verl's reading"


ALL = RolloutCorrectionOptions(
    rollout_is="sequence",
    rollout_is_threshold="0.5_2.0",
    rollout_is_batch_normalize=True,
    rollout_rs=",".join(RS_CRITERIA),
    rollout_rs_threshold=",".join("0.3_3" if name.endswith("k1") else "0.9" for name in RS_CRITERIA),
)
TOKENS = RolloutCorrectionOptions(rollout_is="token", rollout_is_threshold=1.5, rollout_is_batch_normalize=True)


@settings(max_examples=12, deadline=None)
@given(data=st.data())
def test_ranks_padding_row_order_and_junk_change_no_weight_mask_or_metric(data: st.DataObject) -> None:
    options = data.draw(st.sampled_from([ALL, TOKENS]))
    count, width = data.draw(st.integers(1, 6)), data.draw(st.integers(1, 5))
    generator = torch.Generator().manual_seed(data.draw(st.integers(0, 999)))
    train = -torch.rand(count, width, generator=generator, dtype=torch.float64)
    rollout = train + 0.4 * torch.randn(count, width, generator=generator, dtype=torch.float64)
    mask = torch.randint(0, 2, (count, width), generator=generator)
    expected = rollout_correction(train, rollout, mask, options)
    junk = data.draw(st.sampled_from([math.nan, math.inf, -math.inf, 1e30]))
    empty = data.draw(st.integers(0, 7))

    def dirty(tensor: Tensor) -> Tensor:
        filled = torch.where(mask.bool(), tensor, junk)
        return torch.nn.functional.pad(filled, (0, 1, 0, empty), value=junk)

    order = torch.tensor(data.draw(st.permutations(range(count + empty))))
    ranks = data.draw(st.integers(1, 3))
    wide = [dirty(train)[order], dirty(rollout)[order], torch.nn.functional.pad(mask, (0, 1, 0, empty))[order]]

    def work(rank: int, gather: Any) -> Correction:
        old, sampled, chosen = (tensor[rank::ranks] for tensor in wide)
        return rollout_correction(old, sampled, chosen, options, gather=gather)

    parts = on_ranks(ranks, work)
    metrics: list[Metrics] = [part.metrics for part in parts]
    assert scalars(merge(metrics)) == pytest.approx(scalars(expected.metrics), nan_ok=True, rel=1e-9, abs=1e-12)
    for rank, part in enumerate(parts):
        for place, row in enumerate(order[rank::ranks].tolist()):
            if row < count:
                assert part.response_mask[place, :width].tolist() == expected.response_mask[row].tolist()
                assert part.rollout_is_weights is not None
                assert expected.rollout_is_weights is not None
                torch.testing.assert_close(part.rollout_is_weights[place, :width], expected.rollout_is_weights[row])


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"rollout_is": "geometric"}, "geometric.*token, sequence"),
        ({"rollout_is": "token", "rollout_is_threshold": -1.0}, "rollout_is_threshold"),
        ({"rollout_is": "token", "rollout_is_threshold": "2_0.5"}, "in order"),
        ({"rollout_is": "token", "rollout_is_threshold": "1_2_3"}, "lo_hi"),
        ({"rollout_is": "token", "rollout_is_threshold": "abc"}, "'abc', which is not a number"),
        ({"rollout_rs": "token_k1"}, "needs a rollout_rs_threshold"),
        ({"rollout_rs": "seq_max_k1", "rollout_rs_threshold": 2.0}, "seq_max_k1.*seq_max_k2"),
        ({"rollout_rs": "token_k1,token_k2,token_k3", "rollout_rs_threshold": "2,0.1"}, "2 thresholds for 3 criteria"),
        ({"rollout_rs": "token_k2", "rollout_rs_threshold": 0.0}, "must be > 0"),
        ({"rollout_rs": "token_k2", "rollout_rs_threshold": "0.1_0.2"}, "one upper bound"),
        ({"rollout_rs": "token_k1", "rollout_rs_threshold": 0.5}, "u >= 1"),
        ({"rollout_rs": "token_k1", "rollout_rs_threshold": "2_0.5"}, "lo <= hi"),
        ({"rollout_rs": "", "rollout_rs_threshold": 0.1}, "unknown rollout_rs ''"),
        ({"loss_type": "nonsense"}, "ppo_clip, reinforce"),
    ],
)
def test_thresholds_that_make_no_sense_are_refused_in_words(options: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        RolloutCorrectionOptions(**options)


def test_the_effective_size_of_what_was_sampled_is_that_of_its_importance_weights() -> None:
    # Weights 2 and 1/2 of two tokens; the third is a tool's.
    old, rollout = torch.tensor([[0.5, 0.2, 0.9]]).log(), torch.tensor([[0.25, 0.4, 0.1]]).log()
    mask = torch.tensor([[1, 1, 0]])
    metrics = effective_sample_size(old, rollout, mask)
    assert scalars(metrics) == pytest.approx({"training/off_policy/eff_sample_size": 2.5**2 / (2 * 4.25)})
    # Two ranks join to the whole.
    parts = [effective_sample_size(old[:, at : at + 1], rollout[:, at : at + 1], mask[:, at : at + 1]) for at in range(3)]
    assert scalars(merge(parts)) == pytest.approx(scalars(metrics))
    assert scalars(effective_sample_size(old, old, mask)) == {"training/off_policy/eff_sample_size": 1.0}
    assert effective_sample_size(old, rollout, mask * 0) == {}
