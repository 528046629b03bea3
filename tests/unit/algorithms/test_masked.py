"""Masked reductions."""

import math
import statistics

import pytest
import torch
from hypothesis import given, settings, strategies as st

from asyncrl.algorithms.masked import (
    first_of_row,
    masked,
    masked_mean,
    masked_sum,
    masked_variance,
    masked_whiten,
    merged_moments,
    moments,
    ones,
    over_tokens,
    until_end,
    whitened,
)

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


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.tuples(st.floats(-1e3, 1e3), st.integers(0, 3)), min_size=2, max_size=16).filter(
        lambda pairs: sum(w for _, w in pairs) > 1
    ),
    st.integers(1, 4),
)
def test_moments_of_parts_merge_to_those_of_the_whole(pairs: list[tuple[float, int]], parts: int) -> None:
    values, weights = (torch.tensor([pair[part] for pair in pairs], dtype=torch.float64) for part in (0, 1))
    pieces = [moments(values[start::parts], weights[start::parts]) for start in range(parts)]
    merged = merged_moments(torch.stack(pieces))
    repeated = [value for value, weight in pairs for _ in range(weight)]
    mean = statistics.fmean(repeated)
    assert merged.tolist() == pytest.approx([len(repeated), mean, sum((value - mean) ** 2 for value in repeated)], rel=1e-9, abs=1e-9)


def test_moments_do_not_cancel_where_the_mean_is_large() -> None:
    values = torch.tensor([1e8, 1e8 + 1, 1e8 + 2], dtype=torch.float64)
    ones = torch.ones(3)
    assert moments(values, ones).tolist() == [3.0, 1e8 + 1, 2.0]
    assert merged_moments(torch.stack([moments(values[:1], ones[:1]), moments(values[1:], ones[1:])])).tolist() == [3.0, 1e8 + 1, 2.0]


def test_moments_and_whitening_do_not_see_what_lies_under_the_mask() -> None:
    assert moments(VALUES, MASK).tolist() == [4.0, 4.0, 20.0]
    white = whitened(VALUES, MASK, torch.tensor([4.0, 4.0, 12.0], dtype=torch.float64))
    assert white.tolist() == [pytest.approx(row) for row in ([-1.5, -0.5, 0.0], [0.0] * 3, [0.5, 0.0, 1.5])]


def test_a_square_tensor_is_whitened_as_a_wider_one_of_the_same_values() -> None:
    values = torch.tensor([[1.0, 2, 3], [4, 5, 6], [7, 8, 10]])
    mask = torch.tensor([[1, 1, 0], [1, 1, 1], [1, 0, 0]])
    wide = masked_whiten(torch.nn.functional.pad(values, (0, 2), value=math.nan), torch.nn.functional.pad(mask, (0, 2)))
    torch.testing.assert_close(wide[:, :3], masked_whiten(values, mask))


def test_ones_are_counted_whatever_the_mask_is_made_of() -> None:
    mask = torch.tensor([[1, 0, 1], [0, 0, 0]])
    for kind in (torch.bool, torch.uint8, torch.int64, torch.float32, torch.bfloat16):
        assert ones(mask.to(kind)).item() == 2
        assert ones(mask.to(kind), -1).tolist() == [2, 0]
    assert ones(torch.ones(300, 400, dtype=torch.bool)).item() == 120_000
    assert ones(torch.zeros(2, 0), -1).tolist() == [0, 0]
    assert ones(torch.ones(3, 1, dtype=torch.bool).expand(3, 5).T, -1).tolist() == [3] * 5


def test_the_first_of_a_row_is_that_at_its_first_one() -> None:
    values, mask = torch.tensor([[math.nan, 2.0, 3.0], [math.nan] * 3]), torch.tensor([[0, 1, 1], [0, 0, 0]])
    assert first_of_row(values, mask).tolist() == [2.0, 0.0]
    assert first_of_row(torch.zeros(2, 0), torch.zeros(2, 0)).tolist() == [0.0, 0.0]


def test_a_response_ends_with_its_first_end_token() -> None:
    tokens = torch.tensor([[5, 1, 7, 2], [3, 4, 5, 6], [2, 1, 1, 1]])
    assert until_end(tokens, [1, 2]).tolist() == [[1, 1, 0, 0], [1, 1, 1, 1], [1, 0, 0, 0]]
