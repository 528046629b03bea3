"""Masked reductions."""

import math

import pytest
import torch

from asyncrl.algorithms.masked import masked, masked_mean, masked_sum, masked_variance, masked_whiten, over_tokens

MASK = torch.tensor([[1, 1, 0], [0, 0, 0], [1, 0, 1]])
VALUES = torch.tensor([[1.0, 3.0, math.nan], [math.inf, -math.inf, math.nan], [5.0, 1e30, 7.0]])


def test_sums_and_means_by_hand() -> None:
    assert float(masked_sum(VALUES, MASK)) == 16.0
    assert float(masked_mean(VALUES, MASK)) == 4.0
    assert masked_mean(VALUES, MASK, -1).tolist() == [2.0, 0.0, 6.0]
    assert float(masked_variance(VALUES, MASK)) == pytest.approx(20 / 3)
    assert float(masked_variance(VALUES, MASK, unbiased=False)) == 5.0


def test_whitening_leaves_mean_zero_and_deviation_one_on_the_mask_and_zero_elsewhere() -> None:
    white = masked_whiten(VALUES, MASK)
    assert float(masked_mean(white, MASK)) == pytest.approx(0.0, abs=1e-6)
    assert float(masked_variance(white, MASK)) == pytest.approx(1.0)
    assert white[MASK == 0].tolist() == [0.0] * 5
    assert float(masked_mean(masked_whiten(VALUES, MASK, shift_mean=False), MASK)) == pytest.approx(4.0)


@pytest.mark.parametrize("ones", [0, 1])
def test_whitening_of_fewer_than_two_values_is_zero(ones: int) -> None:
    mask = torch.tensor([[ones, 0]])
    assert masked_whiten(torch.tensor([[3.0, math.nan]]), mask).tolist() == [[0.0, 0.0]]


def test_no_gradient_passes_from_under_the_mask() -> None:
    values = VALUES.clone().requires_grad_()
    (grad,) = torch.autograd.grad((masked(values, MASK).exp() * 2).sum(), values)
    assert bool(torch.isfinite(grad).all())
    assert grad[MASK == 0].tolist() == [0.0] * 5


def test_a_scalar_lands_on_the_trainable_tokens_of_each_row_alone() -> None:
    assert over_tokens(torch.tensor([2.0, math.nan, -1.0]), MASK).tolist() == [[2.0, 2.0, 0.0], [0.0] * 3, [-1.0, 0.0, -1.0]]
