"""Batches: columns become tensors over the same memory, and tensors become the same columns again."""

from itertools import product
from typing import Any

import numpy as np
import pytest
import torch

from asyncrl.errors import FieldMismatch, MissingField
from asyncrl.tensors.batch import TORCH, Batch
from asyncrl.tensors.dtypes import STORAGE
from asyncrl.tensors.jagged import Jagged
from asyncrl.tensors.wire import Column, pack, unpack

KEYS = ("a_0_0", "a_1_0", "b_0_0")


def _columns() -> dict[str, Column]:
    return {
        "responses": Column.jagged("int64", [[1, 2, 3], [], [4]]),
        "hidden": Column.jagged(
            "bfloat16", [np.full((2, 2), 0x3F80, np.uint16), np.full((0, 2), 0, np.uint16), np.full((1, 2), 0, np.uint16)]
        ),
        "score": Column.dense(np.array([0.5, 1.5, -2.0])),
        "image": Column.dense(np.arange(12, dtype=np.uint8).reshape(3, 2, 2)),
        "answer": Column.strings(["x", "", "yz"]),
        "extra": Column.objects(["only", "strings", "here"]),
        "blob": Column.blobs([b"1", b"2", b""]),
    }


def test_columns_become_tensors_of_their_kind() -> None:
    batch = Batch.from_columns(KEYS, _columns())
    assert len(batch) == 3
    assert [row.tolist() for row in batch.jagged("responses").to_rows()] == [[1, 2, 3], [], [4]]
    assert batch.jagged("hidden").values.dtype == torch.bfloat16
    assert batch.jagged("hidden").row(0).tolist() == [[1.0, 1.0], [1.0, 1.0]]
    assert batch.dense("score").tolist() == [0.5, 1.5, -2.0]
    assert batch.dense("image").shape == (3, 2, 2)
    assert batch.objects("answer") == ["x", "", "yz"]
    assert batch.objects("blob") == [b"1", b"2", b""]


@pytest.mark.parametrize("dtype", list(TORCH))
def test_every_dtype_and_shape_comes_back_bit_for_bit(dtype: str) -> None:
    for trailing, rows, jagged in product([(), (2, 3)], [0, 3], [True, False]):
        array = np.ones((rows, *trailing), STORAGE[dtype])
        column = Column.jagged(dtype, [array[:index] for index in range(rows)], trailing) if jagged else Column.dense(array, dtype)
        batch = Batch.from_columns(KEYS[:rows], {"x": column})
        found = batch.jagged("x").values if jagged else batch.dense("x")
        assert found.dtype == TORCH[dtype]
        back = batch.columns(["x"])["x"]
        assert back.layout == column.layout
        assert back.to_list() == column.to_list()
        assert back.values.tobytes() == column.values.tobytes()


def test_a_batch_becomes_the_same_columns_again() -> None:
    columns = _columns()
    back = Batch.from_columns(KEYS, columns).columns()
    assert {name: column.layout for name, column in back.items()} == {name: column.layout for name, column in columns.items()}
    assert {name: column.to_list() for name, column in back.items()} == {name: column.to_list() for name, column in columns.items()}


def test_received_frames_are_not_copied() -> None:
    header, frames = pack(Column.jagged("float32", [np.ones(5000, np.float32)]))
    received = bytearray(frames[0])
    batch = Batch.from_columns(["a"], {"x": unpack(header, [received, bytearray(frames[1])])})
    received[:4] = np.float32(7).tobytes()
    assert batch.jagged("x").values[0] == 7
    sent = batch.columns()["x"]
    assert np.shares_memory(sent.values, np.frombuffer(received, np.uint8))


@pytest.mark.parametrize("wrap", [bytes, lambda frame: memoryview(bytearray(b"x" + bytes(frame)))[1:]])
def test_read_only_and_misaligned_buffers_are_copied_without_a_warning(wrap: Any) -> None:
    header, frames = pack(Column.jagged("int64", [[1, 2], [3]]))
    batch = Batch.from_columns(["a", "b"], {"x": unpack(header, [wrap(frame) for frame in frames])})
    batch.jagged("x").values.add_(1)
    assert batch.jagged("x").values.tolist() == [2, 3, 4]
    assert bytes(frames[0]) == np.array([1, 2, 3]).tobytes()


def test_rows_are_taken_in_every_kind_of_field() -> None:
    batch = Batch.from_columns(KEYS, _columns()).take([2, 0])
    assert batch.keys == ("b_0_0", "a_0_0")
    assert [row.tolist() for row in batch.jagged("responses").to_rows()] == [[4], [1, 2, 3]]
    assert batch.dense("score").tolist() == [-2.0, 0.5]
    assert batch.objects("answer") == ["yz", "x"]
    assert batch.columns(["extra"])["extra"].dtype == "json"
    assert len(batch.take(range(0))) == 0
    with pytest.raises(IndexError, match="row 2 of a batch of 2"):
        batch.take([2])


def test_new_fields_are_added_and_replace_old_ones() -> None:
    batch = Batch.from_columns(KEYS, _columns()).with_fields({"score": torch.zeros(3), "extra": [{"a": 1}, None, 2]})
    assert batch.dense("score").tolist() == [0, 0, 0]
    assert batch.columns(["extra"])["extra"].to_list() == [{"a": 1}, None, 2]
    assert batch.select(["score"]).fields.keys() == {"score"}
    with pytest.raises(ValueError, match="field 'score' has 2 rows, the batch has 3 keys"):
        batch.with_fields({"score": torch.zeros(2)})


def test_a_field_of_another_kind_or_none_is_named() -> None:
    batch = Batch.from_columns(KEYS, _columns())
    with pytest.raises(FieldMismatch, match="'score'") as mismatch:
        batch.jagged("score")
    assert (mismatch.value.seen, mismatch.value.expected) == ("jagged", "dense")
    with pytest.raises(FieldMismatch):
        batch.dense("responses")
    with pytest.raises(FieldMismatch):
        batch.objects("responses")
    with pytest.raises(MissingField) as missing:
        batch.columns(["advantages"])
    assert missing.value.field == "advantages"
    assert "responses" in missing.value.known


def test_gradients_strides_and_foreign_dtypes() -> None:
    values = torch.arange(6.0, requires_grad=True).reshape(3, 2).T * 2
    batch = Batch(("a", "b"), {"x": values, "y": Jagged(torch.zeros(2, dtype=torch.complex64), torch.tensor([0, 1, 2]))})
    assert batch.columns(["x"])["x"].to_list() == [[0.0, 4.0, 8.0], [2.0, 6.0, 10.0]]
    with pytest.raises(ValueError, match=r"no column holds torch\.complex64"):
        batch.columns(["y"])
