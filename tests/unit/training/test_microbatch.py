"""Cuts and layouts."""

import pytest
import torch
from hypothesis import given, settings, strategies as st

from asyncrl.errors import ConfigError
from asyncrl.tensors.jagged import Jagged
from asyncrl.training.microbatch import MicroBatching, idle_input, model_input


def jagged(*rows: list[int]) -> Jagged:
    return Jagged.from_rows([torch.tensor(row, dtype=torch.int64) for row in rows])


def test_rows_are_cut_in_order() -> None:
    assert MicroBatching().cut([1, 2, 3]) == [[0, 1, 2]]
    assert MicroBatching(rows=2).cut([1, 2, 3]) == [[0, 1], [2]]
    assert MicroBatching().cut([]) == MicroBatching(rows=2).cut([]) == MicroBatching(max_tokens=3).cut([]) == []


def test_three_full_rows_make_three_micro_batches_and_two_short_ones_one() -> None:
    assert MicroBatching(max_tokens=16, packed=True).cut([16, 16, 16]) == [[0], [1], [2]]
    assert MicroBatching(max_tokens=16, packed=True).cut([4, 4]) == [[0, 1]]


def test_padding_counts_in_the_budget_unless_rows_are_packed() -> None:
    assert MicroBatching(max_tokens=8).cut([4, 1, 1, 1]) == [[0, 1], [2, 3]]
    assert MicroBatching(max_tokens=8, packed=True).cut([4, 1, 1, 1]) == [[0, 1, 2, 3]]


@settings(max_examples=80, deadline=None)
@given(st.lists(st.integers(1, 20), max_size=30), st.integers(20, 60), st.booleans())
def test_every_row_is_in_one_micro_batch_and_none_is_over_the_budget(lengths: list[int], budget: int, packed: bool) -> None:
    cuts = MicroBatching(max_tokens=budget, packed=packed).cut(lengths)
    assert sorted(row for cut in cuts for row in cut) == list(range(len(lengths)))
    for cut in cuts:
        sizes = [lengths[row] for row in cut]
        assert (sum(sizes) if packed else len(sizes) * max(sizes)) <= budget
        assert cut == sorted(cut)


def test_a_row_over_the_budget_and_senseless_sizes_are_refused() -> None:
    with pytest.raises(ConfigError, match="9 tokens"):
        MicroBatching(max_tokens=8).cut([3, 9])
    with pytest.raises(ConfigError, match="at least 1"):
        MicroBatching(rows=0)
    with pytest.raises(ConfigError, match="not both"):
        MicroBatching(rows=1, max_tokens=5)


def test_padded_rows_stand_below_one_another() -> None:
    laid = model_input(jagged([1, 2], [3]), jagged([4], [5, 6, 7]), packed=False)
    assert laid.input_ids.tolist() == [[1, 2, 0], [3, 5, 6]]
    assert laid.position_ids is None
    assert laid.predicting.tolist() == [1, 3, 4, 5]
    assert laid.targets.tolist() == [4, 5, 6, 7]
    assert laid.padded(torch.tensor([1.0, 2.0, 3.0, 4.0])).tolist() == [[1, 0, 0], [2, 3, 4]]


def test_packed_rows_stand_one_after_another_and_count_from_zero() -> None:
    laid = model_input(jagged([1, 2], [3], [8]), jagged([4], [], [5, 6]), packed=True)
    assert laid.input_ids.tolist() == [[1, 2, 3, 8, 5]]
    assert laid.position_ids is not None
    assert laid.position_ids.tolist() == [[0, 1, 0, 0, 1]]
    assert laid.predicting.tolist() == [1, 3, 4]
    assert laid.padded(torch.tensor([1.0, 2.0, 3.0])).tolist() == [[1, 0], [0, 0], [2, 3]]


def test_a_row_without_a_prompt_is_refused() -> None:
    with pytest.raises(ValueError, match="without a prompt"):
        model_input(jagged([], [1]), jagged([1], [1]), packed=False)


def test_an_idle_rank_runs_one_token() -> None:
    laid = idle_input(torch.device("cpu"))
    assert laid.input_ids.shape == (1, 1)
    assert laid.predicting.tolist() == [0]
