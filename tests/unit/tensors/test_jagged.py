"""Jagged rows as torch tensors: padding, packing, choosing, joining."""

import pytest
import torch
from hypothesis import given, settings, strategies as st

from asyncrl.tensors.jagged import Jagged


def _jagged(*rows: list[int]) -> Jagged:
    return Jagged.from_rows([torch.tensor(row, dtype=torch.int64) for row in rows])


def test_lengths_three_five_four_pad_to_five() -> None:
    rows = _jagged([1, 2, 3], [4, 5, 6, 7, 8], [9, 10, 11, 12])
    assert (rows.rows, rows.longest) == (3, 5)
    assert rows.lengths.tolist() == [3, 5, 4]
    assert rows.offsets.tolist() == [0, 3, 8, 12]
    assert rows.padded(-1).tolist() == [[1, 2, 3, -1, -1], [4, 5, 6, 7, 8], [9, 10, 11, 12, -1]]


def test_a_wider_padding_is_given_and_a_narrower_one_refused() -> None:
    rows = _jagged([1, 2], [3])
    assert rows.padded(0, width=3).tolist() == [[1, 2, 0], [3, 0, 0]]
    assert rows.mask(3).tolist() == [[True, True, False], [True, False, False]]
    with pytest.raises(ValueError, match="up to 2 elements do not fit a width of 1"):
        rows.padded(0, width=1)


def test_empty_rows_and_no_rows_are_rows_like_others() -> None:
    only_empty = _jagged([], [])
    assert only_empty.padded(0).shape == (2, 0)
    assert Jagged.from_padded(only_empty.padded(0), only_empty.lengths).lengths.tolist() == [0, 0]
    none = Jagged(torch.zeros(0, 4), torch.zeros(1, dtype=torch.int64))
    assert (none.rows, none.longest) == (0, 0)
    assert none.padded(0).shape == (0, 0, 4)
    assert none.take([]).rows == 0


def test_trailing_dimensions_and_bfloat16_are_padded() -> None:
    rows = Jagged.from_rows([torch.ones(2, 3, dtype=torch.bfloat16), torch.ones(1, 3, dtype=torch.bfloat16)])
    padded = rows.padded(0)
    assert padded.shape == (2, 2, 3)
    assert padded.dtype == torch.bfloat16
    assert padded[1, 1].tolist() == [0, 0, 0]


@settings(max_examples=40)
@given(st.data())
def test_every_operation_agrees_with_lists(data: st.DataObject) -> None:
    rows = data.draw(st.lists(st.lists(st.integers(-9, 9), max_size=5), min_size=1, max_size=6))
    indices = data.draw(st.lists(st.integers(0, len(rows) - 1), max_size=8))
    jagged = _jagged(*rows)
    assert [row.tolist() for row in jagged.to_rows()] == rows
    assert [jagged.row(index).tolist() for index in range(jagged.rows)] == rows
    assert [row.tolist() for row in jagged.take(indices).to_rows()] == [rows[index] for index in indices]
    assert [row.tolist() for row in jagged.take(torch.tensor(indices, dtype=torch.int64)).to_rows()] == [rows[i] for i in indices]
    assert [row.tolist() for row in Jagged.concat([jagged, jagged]).to_rows()] == rows + rows
    back = Jagged.from_padded(jagged.padded(99), jagged.lengths)
    assert torch.equal(back.values, jagged.values)
    assert torch.equal(back.offsets, jagged.offsets)


def test_other_values_of_the_same_rows() -> None:
    rows = _jagged([1, 2], [3])
    assert rows.with_values(torch.tensor([0.5, 1.0, 1.5])).row(1).tolist() == [1.5]
    with pytest.raises(ValueError, match="2 values for rows of 3 elements"):
        rows.with_values(torch.zeros(2))


def test_a_range_chooses_rows() -> None:
    assert [row.tolist() for row in _jagged([1], [2, 3], [4]).take(range(2)).to_rows()] == [[1], [2, 3]]


def test_what_cannot_be_rows_is_refused() -> None:
    with pytest.raises(ValueError, match="no jagged rows"):
        Jagged(torch.zeros(3), torch.tensor([0, 3], dtype=torch.int32))
    with pytest.raises(ValueError, match="no jagged rows"):
        Jagged(torch.tensor(1.0), torch.tensor([0, 1]))
    with pytest.raises(ValueError, match="lengths from 1 to 3 in rows of 2"):
        Jagged.from_padded(torch.zeros(2, 2), torch.tensor([1, 3]))
    with pytest.raises(ValueError, match=r"\[3\] lengths"):
        Jagged.from_padded(torch.zeros(2, 2), torch.tensor([1, 1, 1]))
    with pytest.raises(IndexError):
        _jagged([1]).take([1])
    with pytest.raises(IndexError):
        _jagged([1]).row(-1)
