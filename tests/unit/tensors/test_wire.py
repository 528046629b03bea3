"""Columns: every dtype, shape and edge length comes back as it went in, and nothing malformed gets through."""

import json
import math
import subprocess
import sys
from itertools import product
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from numpy.typing import NDArray

from asyncrl.errors import WireError
from asyncrl.tensors.dtypes import STORAGE, TEXT
from asyncrl.tensors.wire import Column, ColumnHeader, check, describe, pack, unpack

NUMERIC = [name for name in STORAGE if name not in TEXT]


def _array(dtype: str, shape: tuple[int, ...]) -> NDArray[Any]:
    """Numbers of every bit pattern that the dtype allows."""
    storage = STORAGE[dtype]
    raw = np.random.default_rng(math.prod(shape) + 7).integers(0, 256, math.prod(shape) * storage.itemsize, np.uint8)
    if dtype == "bool":
        raw %= 2
    return raw.view(storage).reshape(shape)


def _over_the_wire(column: Column) -> Column:
    """Through MessagePack and byte frames, as another process would see it."""
    header, frames = pack(column)
    return unpack(msgspec.msgpack.decode(msgspec.msgpack.encode(header)), [bytes(frame) for frame in frames])


def _same(left: Column, right: Column) -> bool:
    offsets = [None if column.offsets is None else column.offsets.tolist() for column in (left, right)]
    return (
        left.layout == right.layout
        and left.rows == right.rows
        and offsets[0] == offsets[1]
        and left.values.tobytes() == right.values.tobytes()
    )


def test_a_jagged_column_of_lists_has_the_buffer_and_offsets_of_a_hand_calculation() -> None:
    column = Column.jagged("int32", [[1, 2], [], [3]])
    assert column.values.tolist() == [1, 2, 3]
    assert column.values.dtype == np.int32
    assert column.offsets is not None
    assert column.offsets.tolist() == [0, 2, 2, 3]
    assert column.lengths().tolist() == [2, 0, 1]
    assert column.nbytes == 12
    assert column.to_list() == [[1, 2], [], [3]]


@pytest.mark.parametrize("dtype", NUMERIC)
def test_jagged_columns_of_every_dtype_shape_and_length_come_back(dtype: str) -> None:
    for trailing, lengths in product([(), (3,), (2, 1, 4), (0,)], [[2, 0, 3], [0, 0], [0], [1, 1, 1], []]):
        rows = [_array(dtype, (length, *trailing)) for length in lengths]
        back = _over_the_wire(Column.jagged(dtype, rows, trailing))
        assert back.layout == (dtype, trailing, True)
        assert [back.row(index).tobytes() for index in range(back.rows)] == [row.tobytes() for row in rows]
        assert [back.row(index).shape for index in range(back.rows)] == [row.shape for row in rows]


@pytest.mark.parametrize("dtype", NUMERIC)
def test_dense_columns_of_every_dtype_and_shape_come_back(dtype: str) -> None:
    for shape in [(4,), (0,), (3, 2), (2, 0), (0, 5), (2, 3, 1)]:
        array = _array(dtype, shape)
        back = _over_the_wire(Column.dense(array, dtype))
        assert (back.dtype, back.trailing, back.rows, back.offsets) == (dtype, shape[1:], shape[0], None)
        assert back.values.tobytes() == array.tobytes()


def test_rows_of_equal_lengths_stay_jagged_and_dense_rows_stay_dense() -> None:
    assert _over_the_wire(Column.jagged("int64", [[1, 2], [3, 4]])).offsets is not None
    assert _over_the_wire(Column.dense([[1, 2], [3, 4]])).offsets is None


@settings(max_examples=40)
@given(st.lists(st.text(st.characters(), max_size=8), max_size=6), st.lists(st.binary(max_size=8), max_size=6))
def test_strings_and_byte_strings_come_back(texts: list[str], blobs: list[bytes]) -> None:
    assert _over_the_wire(Column.strings(texts)).to_list() == texts
    assert _over_the_wire(Column.blobs(blobs)).to_list() == blobs


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=8,
)


@settings(max_examples=40)
@given(st.lists(_JSON, max_size=5))
def test_objects_come_back(objects: list[Any]) -> None:
    assert _over_the_wire(Column.objects(objects)).to_list() == objects


def test_a_lone_surrogate_and_not_a_number_come_back() -> None:
    assert Column.strings(["\ud800"]).to_list() == ["\ud800"]
    assert math.isnan(_over_the_wire(Column.objects([math.nan])).to_list()[0])


@pytest.mark.parametrize("value", [{1: "a"}, {"a": [{2: 0}]}, b"x", np.int64(1), {3}])
def test_an_object_that_json_would_change_is_refused(value: object) -> None:
    with pytest.raises(TypeError):
        Column.objects([value])


@pytest.mark.parametrize(
    ("dtype", "rows"),
    [
        ("int64", [[1.5]]),
        ("uint8", [[256]]),
        ("uint8", [[-1]]),
        ("bool", [[2]]),
        ("bfloat16", [[0.5]]),
        ("int64", [["a"]]),
        ("int64", [[None]]),
        ("int64", [[2**64]]),
        ("str", [[1]]),
        ("complex64", [[1]]),
        ("int64", [[1], [[2]]]),
        ("int64", [np.zeros((1, 2), np.int64), np.zeros((1, 3), np.int64)]),
        ("int64", [1]),
    ],
)
def test_values_that_would_not_come_back_are_refused(dtype: str, rows: list[Any]) -> None:
    with pytest.raises(ValueError, match=r".+"):
        Column.jagged(dtype, rows)


def test_numbers_widen_where_nothing_is_lost() -> None:
    assert Column.jagged("float32", [[1, 0.5], [True]]).to_list() == [[1.0, 0.5], [1.0]]
    assert Column.jagged("int64", [np.array([7], np.int16)]).to_list() == [[7]]
    assert Column.dense([True, False]).dtype == "bool"


def test_the_trailing_shape_is_read_from_the_first_row_that_shows_it() -> None:
    column = Column.jagged("float32", [[], np.zeros((0, 2), np.float32), [[1.0, 2.0]]])
    assert column.layout == ("float32", (2,), True)
    assert [column.row(index).shape for index in range(3)] == [(0, 2), (0, 2), (1, 2)]


@settings(max_examples=40)
@given(st.data())
def test_take_slice_and_concat_agree_with_lists(data: st.DataObject) -> None:
    rows = data.draw(st.lists(st.lists(st.integers(-5, 5), max_size=4), max_size=8))
    column = Column.jagged("int16", rows)
    start = data.draw(st.integers(0, len(rows)))
    stop = data.draw(st.integers(start, len(rows)))
    indices = data.draw(st.lists(st.integers(0, len(rows) - 1), max_size=10)) if rows else []
    assert column.slice(start, stop).to_list() == rows[start:stop]
    assert column.take(indices).to_list() == [rows[index] for index in indices]
    assert Column.concat([column, column.slice(start, stop), column.take(indices)]).to_list() == [
        *rows,
        *rows[start:stop],
        *(rows[index] for index in indices),
    ]
    check(column.slice(start, stop))
    check(column.take(indices))


def test_long_rows_are_taken_like_short_ones() -> None:
    rows = [list(range(start, start + 600)) for start in (0, 1, 2)]
    assert Column.jagged("int64", rows).take([2, 0, 2]).to_list() == [rows[2], rows[0], rows[2]]


def test_dense_rows_are_taken_sliced_and_joined() -> None:
    column = Column.dense(np.arange(6, dtype=np.float64).reshape(3, 2))
    assert column.take([2, 0]).to_list() == [[4.0, 5.0], [0.0, 1.0]]
    assert column.slice(1, 3).to_list() == [[2.0, 3.0], [4.0, 5.0]]
    assert Column.concat([column.slice(0, 1), column.slice(2, 3)]).to_list() == [[0.0, 1.0], [4.0, 5.0]]
    assert column.row(1).tolist() == [2.0, 3.0]


def test_rows_out_of_range_and_columns_of_other_layouts_are_refused() -> None:
    column = Column.jagged("int64", [[1]])
    for wrong in (lambda: column.row(1), lambda: column.row(-1), lambda: column.take([-1]), lambda: column.slice(0, 2)):
        with pytest.raises(IndexError):
            wrong()
    with pytest.raises(ValueError, match=r"jagged int64 \[\*\] and dense int64 \[\]"):
        Column.concat([column, Column.dense([1])])
    with pytest.raises(ValueError, match="no lengths"):
        Column.dense([1]).lengths()


def test_no_rows_keep_their_layout() -> None:
    for layout in [("int64", (), True), ("float32", (3,), False), ("json", (), True)]:
        assert _over_the_wire(Column.empty(layout)).layout == layout


def test_packing_shares_the_buffer() -> None:
    column = Column.jagged("int64", [np.arange(1000)])
    _, frames = pack(column)
    assert np.shares_memory(np.frombuffer(frames[0], np.uint8), column.values)
    assert np.shares_memory(unpack(pack(column)[0], frames).values, column.values)


def test_an_unaligned_frame_is_read() -> None:
    header, frames = pack(Column.jagged("int64", [[1, 2], [3]]))
    shifted = [memoryview(b"x" + bytes(frame))[1:] for frame in frames]
    assert unpack(header, shifted).to_list() == [[1, 2], [3]]


_GOOD = Column.jagged("int64", [[1, 2], [3]])
_DATA, _OFFSETS = (bytes(frame) for frame in pack(_GOOD)[1])


def _offsets(*values: int) -> bytes:
    return np.array(values, np.int64).tobytes()


@pytest.mark.parametrize(
    ("header", "frames"),
    [
        (("int64", (), 2, True), [_DATA]),
        (("int64", (), 2, False), [_DATA, _OFFSETS]),
        (("int63", (), 2, True), [_DATA, _OFFSETS]),
        (("int64", (), 3, True), [_DATA, _OFFSETS]),
        (("int64", (), -1, True), [b"", b""]),
        (("int64", (), -1, False), [b""]),
        (("int64", (2,), 2, True), [_DATA, _OFFSETS]),
        (("int64", (-1,), 2, True), [_DATA, _OFFSETS]),
        (("int32", (), 2, True), [_DATA, _OFFSETS]),
        (("int64", (), 2, True), [_DATA[:-1], _OFFSETS]),
        (("int64", (), 2, True), [_DATA, _OFFSETS[:-1]]),
        (("int64", (), 2, True), [_DATA, _offsets(1, 2, 3)]),
        (("int64", (), 2, True), [_DATA, _offsets(0, 4, 3)]),
        (("int64", (), 2, True), [_DATA, _offsets(0, -(2**63), 3)]),
        (("int64", (), 2, True), [_DATA, _offsets(0, 1, 2**61 + 3)]),
        (("int64", (), 2, False), [_DATA]),
        (("str", (3,), 1, True), [b"abc", _offsets(0, 1)]),
        (("str", (), 3, False), [b"abc"]),
        (("bool", (), 2, False), [b"\x00\x02"]),
        (("int64", (), "2", True), [_DATA, _OFFSETS]),
        ("int64", [_DATA, _OFFSETS]),
        (None, []),
    ],
)
def test_a_column_whose_parts_do_not_fit_is_refused_before_use(header: object, frames: list[bytes]) -> None:
    with pytest.raises(WireError):
        unpack(header, frames)


def test_text_that_cannot_be_read_is_refused_by_name() -> None:
    with pytest.raises(WireError, match="a row of str"):
        unpack(ColumnHeader("str", (), 1, True), [b"\xff", _offsets(0, 1)]).to_list()
    with pytest.raises(WireError, match="a row of json"):
        unpack(ColumnHeader("json", (), 1, True), [b"{", _offsets(0, 1)]).row(0)


def test_layouts_read_well_in_messages() -> None:
    assert describe(("float32", (3,), True)) == "jagged float32 [*, 3]"
    assert describe(("bool", (2, 3), False)) == "dense bool [2, 3]"
    assert describe(("json", (), True)) == "json"


def test_columns_need_no_torch() -> None:
    code = "import asyncrl.tensors.wire, sys; print('torch' in sys.modules)"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "False"


def test_a_json_column_is_plain_json_on_the_wire() -> None:
    column = Column.objects([{"a": [1, None]}])
    assert json.loads(column.values.tobytes()) == {"a": [1, None]}
    assert _same(column, _over_the_wire(column))


@pytest.mark.parametrize("values", [[2**64 - 1, 0], [0, 2**63], [2**63 + 1, 5, 2**53 + 1], [True, 2**64 - 1], [np.uint64(2**64 - 1), 0]])
def test_integers_of_64_bits_without_a_sign_are_kept_beside_small_ones(values: list[int]) -> None:
    right = [int(value) for value in values]
    assert Column.jagged("uint64", [values, [], [1]]).to_list() == [right, [], [1]]
    assert Column.jagged("uint64", [tuple(values)]).to_list() == [right]
    assert Column.jagged("uint64", [[values, values]]).to_list() == [[right, right]]
    assert Column.dense(values, "uint64").to_list() == right
    assert Column.dense([values]).to_list() == [right]


def test_integers_that_no_64_bits_hold_together_are_refused_with_what_they_are() -> None:
    with pytest.raises(ValueError, match=f"values from -1 to {2**64 - 1} do not fit a column of uint64"):
        Column.jagged("uint64", [[2**64 - 1, -1]])
    with pytest.raises(ValueError, match=f"values from -1 to {2**64 - 1} do not fit a column of uint64"):
        Column.dense([2**64 - 1, -1])
    with pytest.raises(ValueError, match="uint64"):
        Column.jagged("uint64", [[2**64, 1]])


def test_floats_beside_large_integers_stay_floats() -> None:
    assert Column.dense([2.0**63, 1.5]).layout == ("float64", (), False)
    assert Column.jagged("float64", [[2**63, 1]]).to_list() == [[2.0**63, 1.0]]
    for values in ([2**64 - 1, 1.5], [2**64 - 1, 1.0], [np.inf, 1.0]):
        with pytest.raises(ValueError, match="float64 values do not fit a column of uint64"):
            Column.jagged("uint64", [values])
