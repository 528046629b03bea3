"""Aggregation of token losses."""

import math

import pytest
import torch
from hypothesis import given, settings, strategies as st

from asyncrl.algorithms.aggregation import AGGREGATIONS, Denominators, aggregate

MASK = torch.tensor([[1, 1, 0, 0], [1, 1, 1, 1]])


@pytest.mark.parametrize(
    ("mode", "expected"),
    [
        ("token-mean", 1.0),
        ("token-sum", 6.0),
        ("seq-mean-token-sum", 3.0),
        ("seq-mean-token-sum-norm", 0.375),
        ("seq-mean-token-mean", 1.0),
    ],
)
def test_all_losses_one_lengths_two_and_four_horizon_eight(mode: str, expected: float) -> None:
    assert float(aggregate(torch.ones(2, 4), MASK, mode, Denominators.of(MASK, 8))) == pytest.approx(expected)
    twice = MASK.repeat(2, 1)
    doubled = float(aggregate(torch.ones(4, 4), twice, mode, Denominators.of(twice, 8)))
    assert doubled == pytest.approx(expected * 2 if mode == "token-sum" else expected)


def test_token_mean_weighs_tokens_and_not_rows() -> None:
    mask = torch.tensor([[1, 0, 0], [1, 1, 1]])
    losses = torch.tensor([[4.0, math.nan, math.inf], [1.0, 1.0, 1.0]])
    whole = Denominators.of(mask, 3)
    assert whole == Denominators(4, 2, 3)
    parts = [float(aggregate(losses[rows], mask[rows], "token-mean", whole)) for rows in (slice(0, 1), slice(1, 2))]
    assert sum(parts) == pytest.approx(1.75)


@pytest.mark.parametrize("mode", AGGREGATIONS)
def test_nothing_to_train_is_a_loss_of_zero_with_a_zero_gradient(mode: str) -> None:
    losses = torch.full((2, 4), math.nan, requires_grad=True)
    mask = torch.zeros(2, 4)
    loss = aggregate(losses, mask, mode, Denominators.of(mask, 4))
    (grad,) = torch.autograd.grad(loss, losses)
    assert loss.item() == 0.0
    assert grad.tolist() == [[0.0] * 4] * 2


def test_rows_without_tokens_are_in_no_denominator() -> None:
    mask = torch.tensor([[1, 1], [0, 0]])
    assert float(aggregate(torch.ones(2, 2), mask, "seq-mean-token-sum", Denominators.of(mask, 2))) == 2.0


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_cut_row_order_padding_and_junk_under_the_mask_change_nothing(data: st.DataObject) -> None:
    rows, width = data.draw(st.integers(1, 6)), data.draw(st.integers(1, 5))
    seed, mode = data.draw(st.integers(0, 999)), data.draw(st.sampled_from(sorted(AGGREGATIONS)))
    generator = torch.Generator().manual_seed(seed)
    losses = torch.randn(rows, width, generator=generator, dtype=torch.float64)
    mask = torch.randint(0, 2, (rows, width), generator=generator)
    whole = Denominators.of(mask, 7)
    expected = float(aggregate(losses, mask, mode, whole))
    order = torch.randperm(rows, generator=generator)
    junk = torch.where(mask.bool(), losses, data.draw(st.sampled_from([math.nan, math.inf, 1e300])))[order]
    wide = torch.nn.functional.pad(junk, (0, 3), value=math.nan)
    wide_mask = torch.nn.functional.pad(mask[order], (0, 3))
    cut = data.draw(st.integers(1, rows))
    pieces = [slice(at, at + cut) for at in range(0, rows, cut)]
    assert sum(float(aggregate(wide[piece], wide_mask[piece], mode, whole)) for piece in pieces) == pytest.approx(expected, abs=1e-12)


def test_unknown_modes_and_unequal_shapes_are_refused() -> None:
    with pytest.raises(ValueError, match="seq-mean-token-sum-norm"):
        aggregate(torch.ones(2, 4), MASK, "mean", Denominators.of(MASK, 4))
    with pytest.raises(ValueError, match="differ in shape"):
        aggregate(torch.ones(2, 3), MASK, "token-mean", Denominators.of(MASK, 4))
