"""Mini-batches and balancing."""

import itertools

import pytest
from hypothesis import given, settings, strategies as st

from asyncrl.algorithms.balance import (
    balance_groups,
    balance_metrics,
    balance_rows,
    batch_multiple,
    group_rows,
    karmarkar_karp,
    micro_batches,
    mini_batches,
    places,
    row_workload,
)


def test_largest_differencing_by_hand() -> None:
    assert karmarkar_karp([8, 7, 6, 5, 4], 2, equal_size=False) in ([[1, 3, 4], [0, 2]], [[0, 2], [1, 3, 4]])
    assert sorted(karmarkar_karp([1, 1, 1, 100], 2, equal_size=True), key=len)[0] != [3]


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(0, 2000), max_size=24), st.integers(1, 6))
def test_every_row_once_counts_within_one_and_no_worse_than_round_robin(lengths: list[int], parts: int) -> None:
    cut = balance_rows(lengths, parts)
    assert len(cut) == parts
    assert sorted(itertools.chain(*cut)) == list(range(len(lengths)))
    assert all(part == sorted(part) for part in cut)
    sizes = [len(part) for part in cut]
    assert max(sizes) - min(sizes) <= 1
    if len(lengths) % parts == 0 and lengths:
        work = [sum(row_workload(lengths[row]) for row in part) for part in cut]
        assert max(work) - min(work) <= row_workload(max(lengths))


def test_rows_that_do_not_divide_are_all_kept() -> None:
    assert sorted(len(part) for part in balance_rows([5] * 7, 2)) == [3, 4]
    assert sorted(len(part) for part in balance_rows([5], 2)) == [0, 1]
    assert balance_rows([], 2) == [[], []]


@settings(max_examples=30, deadline=None)
@given(st.lists(st.integers(1, 60), min_size=4, max_size=8), st.integers(2, 3))
def test_free_sizes_come_within_a_third_of_the_best_cut(work: list[int], parts: int) -> None:
    ours = max(sum(work[item] for item in part) for part in karmarkar_karp(work, parts, equal_size=False))
    best = min(
        max(sum(w for w, home in zip(work, homes, strict=True) if home == part) for part in range(parts))
        for homes in itertools.product(range(parts), repeat=len(work))
    )
    assert ours <= best * 4 / 3 + 1


def test_impossible_cuts_are_refused() -> None:
    for work, parts, equal in (([1, 2], 3, False), ([1, 2, 3], 2, True), ([1], 0, False)):
        with pytest.raises(ValueError, match="cannot cut"):
            karmarkar_karp(work, parts, equal_size=equal)


def test_mini_batches_are_whole_groups_in_issue_order() -> None:
    assert group_rows(["a", "b", "a", "c"]) == [[0, 2], [1], [3]]
    assert mini_batches(5, 2) == [[0, 1], [2, 3], [4]]
    assert mini_batches(0, 2) == []
    with pytest.raises(ValueError, match="at least one"):
        mini_batches(3, 0)


def test_a_permutation_depends_on_its_two_seeds_alone() -> None:
    orders = {pair: mini_batches(32, 16, permutation=pair) for pair in ((1, 0), (1, 1), (2, 0))}
    assert all(sorted(itertools.chain(*order)) == list(range(32)) for order in orders.values())
    assert len({str(order) for order in orders.values()}) == 3
    assert mini_batches(32, 16, permutation=(1, 0)) == orders[1, 0]
    assert mini_batches(5, 5, permutation=(1, 0)) == [[1, 3, 4, 0, 2]], "the permutation must not change between versions of Python"


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(1, 16), max_size=14), st.integers(16, 40), st.integers(1, 4), st.integers(1, 3))
def test_micro_batches_hold_every_row_once_within_the_budget(lengths: list[int], budget: int, minimum: int, multiple: int) -> None:
    least = -(-max(minimum, -(-sum(lengths) // budget)) // multiple) * multiple
    try:
        parts = micro_batches(lengths, budget, minimum=minimum, multiple=multiple)
    except ValueError:
        assert len(lengths) < least or len(lengths) % multiple
        return
    flat = list(itertools.chain(*parts))
    assert sorted(flat) == list(range(len(lengths)))
    assert [flat[place] for place in places(parts)] == list(range(len(lengths)))
    assert all(part == sorted(part) and sum(lengths[row] for row in part) <= budget for part in parts)
    assert len(parts) % multiple == 0
    assert not lengths or len(parts) >= least


def test_two_ranks_agree_on_the_larger_count() -> None:
    """A budget of 16: three rows of 16 need three micro-batches, and two of 4 take as many only if there are as many rows."""
    need = [len(micro_batches(lengths, 16)) for lengths in ([16, 16, 16], [4, 4, 4])]
    assert need == [3, 1]
    assert [len(micro_batches(lengths, 16, minimum=max(need))) for lengths in ([16, 16, 16], [4, 4, 4])] == [3, 3]
    with pytest.raises(ValueError, match="cannot make 3 micro-batches"):
        micro_batches([4, 4], 16, minimum=3)


def test_rows_that_follow_one_another_stay_together() -> None:
    assert micro_batches([9, 1, 2, 2, 5, 1], 10, group_size=2) == [[0, 1], [2, 3, 4, 5]]
    with pytest.raises(ValueError, match="a multiple of group_size"):
        micro_batches([1, 1, 1], 10, group_size=2)


def test_a_row_over_the_budget_is_refused_and_no_row_needs_no_micro_batch() -> None:
    with pytest.raises(ValueError, match=r"8 tokens does not hold 1 row\(s\) of 9 tokens"):
        micro_batches([9, 2], 8)
    assert micro_batches([], 8) == []
    assert places([]) == []


def test_groups_stay_whole() -> None:
    parts = balance_groups([9, 9, 1, 1, 5, 5, 5, 5], list("aabbccdd"), 2)
    assert sorted(map(len, parts)) == [4, 4]
    assert all(row ^ 1 in part for part in parts for row in part)


def test_batch_multiple_and_metrics() -> None:
    assert batch_multiple(4, 6) == 12
    assert batch_multiple(4, 12, 10) == 60
    assert batch_multiple(3, None) == 3
    assert balance_metrics([1, 2, 3, 4], [[0, 3], [1, 2]]) == {
        "global_seqlen/min": 3,
        "global_seqlen/max": 7,
        "global_seqlen/minmax_diff": 4,
        "global_seqlen/balanced_min": 5,
        "global_seqlen/balanced_max": 5,
        "global_seqlen/mean": 5,
    }
