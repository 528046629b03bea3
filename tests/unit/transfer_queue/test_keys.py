"""Placement is stable and spreads; lists of keys are checked before anything is sent."""

import pytest

from asyncrl.tensors.wire import Column
from asyncrl.transfer_queue.keys import by_slot, check_keys, check_put, placement


def test_placement_is_crc32_and_never_changes() -> None:
    # crc32(b"123456789") = 0xCBF43926, the check value of the polynomial
    assert placement("123456789", 1 << 32) == 0xCBF43926
    assert [placement(key, 4) for key in ("s1e0p0", "s1e0p1", "s1e0p2", "s1e0p3")] == [1, 3, 1, 3]


def test_the_rows_of_a_prompt_share_the_shard_of_its_marker() -> None:
    assert len({placement(key, 7) for key in ("s1e0p7", "s1e0p7_0_0", "s1e0p7_g_0", "s1e0p7_3_12")}) == 1


@pytest.mark.parametrize("slots", [1, 2, 3, 4, 8])
def test_prompts_spread_over_slots(slots: int) -> None:
    counts = [0] * slots
    for position in range(1000):
        counts[placement(f"s1e0p{position}", slots)] += 1
    assert min(counts) > 0.8 * 1000 / slots


def test_positions_are_grouped_by_slot() -> None:
    keys = ["s1e0p0", "s1e0p1", "s1e0p0_0_0", "s1e0p3"]
    assert by_slot(keys, 4) == {1: [0, 2], 3: [1, 3]}
    assert by_slot([], 4) == {}


def test_lists_that_do_not_fit_are_refused_by_name() -> None:
    with pytest.raises(ValueError, match="key 'b' is named twice"):
        check_keys(["a", "b", "b"])
    with pytest.raises(ValueError, match="empty string"):
        check_keys(["a", ""])
    with pytest.raises(TypeError, match="'abc'"):
        check_keys("abc")
    with pytest.raises(ValueError, match="field 'x' has 1 rows for 2 keys"):
        check_put(["a", "b"], {"x": Column.dense([1])}, None)
    with pytest.raises(ValueError, match="1 tags for 2 keys"):
        check_put(["a", "b"], {}, [{}])
