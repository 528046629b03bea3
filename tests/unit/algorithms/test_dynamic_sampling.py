"""Which groups are kept, and what a too long answer costs."""

import pytest
import torch

from asyncrl.algorithms.dynamic_sampling import worth_training, zero_spread, zero_spread_groups
from asyncrl.algorithms.overlong import overlong_penalty


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("values", [[1 / 3] * 7, [0.7] * 8, [0.7] * 5, [1e6] * 3, [0.0] * 2, [-2.5]])
def test_a_group_of_equal_numbers_is_dropped(values: list[float], dtype: torch.dtype) -> None:
    assert zero_spread(torch.tensor(values, dtype=dtype))
    assert not worth_training(values)


def test_a_group_with_a_difference_is_kept() -> None:
    assert worth_training([0.0, 0.0, 1.0])
    assert worth_training(torch.tensor([1000.0, 1000.001]))
    assert not worth_training([0.1 + 0.2, 0.3])
    assert not worth_training([])
    assert zero_spread_groups(torch.tensor([1.0, 0.5, 1.0, 0.0]), torch.tensor([3, 8, 3, 8])).tolist() == [True, False, True, False]


def test_an_answer_pays_for_the_tokens_it_writes_into_the_buffer() -> None:
    assert [overlong_penalty(length, limit=16, buffer=4, factor=1.0) for length in (0, 12, 14, 16)] == [0.0, 0.0, -0.5, -1.0]
    assert overlong_penalty(14, limit=16, buffer=4, factor=3.0) == -1.5


@pytest.mark.parametrize("buffer", [0, -1, 17])
def test_a_buffer_that_cannot_be_is_refused(buffer: int) -> None:
    with pytest.raises(ValueError, match=f"between 1 and the limit of 16 tokens, got {buffer}"):
        overlong_penalty(5, limit=16, buffer=buffer, factor=1.0)
