"""Segments: what is live is counted, what is whole is handed over, the rest is gathered."""

import numpy as np
import pytest

from asyncrl.tensors.wire import Column
from asyncrl.transfer_queue.segments import SMALL, gather
from tests.unit.transfer_queue.rows import segment_of


def test_releasing_rows_counts_their_bytes() -> None:
    segment = segment_of(Column.jagged("int32", [[1, 2, 3], [], [4]]))
    assert (segment.live_rows, segment.live_bytes) == (3, 16)
    assert [segment.release(index) for index in range(3)] == [12, 0, 4]
    assert (segment.live_rows, segment.live_bytes) == (0, 0)


def test_dense_rows_and_trailing_shapes_count_their_bytes() -> None:
    assert segment_of(Column.dense(np.zeros((2, 3, 4), np.float64))).release(0) == 96
    assert segment_of(Column.jagged("uint8", [np.zeros((2, 5), np.uint8)])).release(0) == 10
    assert segment_of(Column.strings(["abc", "d"])).release(0) == 3


def test_a_whole_segment_in_order_is_handed_over_without_a_copy() -> None:
    segment = segment_of(Column.jagged("int64", [[1], [2, 3], [4]]))
    assert gather([(segment, index) for index in range(3)]) is segment.column
    part = gather([(segment, 1), (segment, 2)])
    assert part.to_list() == [[2, 3], [4]]
    assert np.shares_memory(part.values, segment.column.values)


def test_rows_of_several_segments_come_in_the_order_asked_for() -> None:
    first = segment_of(Column.jagged("int64", [[1], [2, 3], [4]]))
    second = segment_of(Column.jagged("int64", [[], [5]]))
    assert gather([(first, 2), (first, 0)]).to_list() == [[4], [1]]
    assert gather([(second, 1), (first, 1), (first, 2), (second, 0)]).to_list() == [[5], [2, 3], [4], []]


def test_a_large_frame_is_kept_a_small_or_shared_one_copied() -> None:
    large, small, shared = (np.zeros(size, np.uint8) for size in (SMALL, 8, SMALL))
    shared.flags.writeable = False
    assert np.shares_memory(segment_of(Column.dense(large)).column.values, large)
    assert not np.shares_memory(segment_of(Column.dense(small)).column.values, small)
    assert not np.shares_memory(segment_of(Column.dense(shared)).column.values, shared)


@pytest.mark.parametrize("size", [4, SMALL])
def test_storage_cannot_be_written_through_what_is_read(size: int) -> None:
    found = gather([(segment_of(Column.jagged("uint8", [np.zeros(size, np.uint8)])), 0)])
    with pytest.raises(ValueError, match="read-only"):
        found.values[0] = 1
    assert found.offsets is not None
    with pytest.raises(ValueError, match="read-only"):
        found.offsets[0] = 1
