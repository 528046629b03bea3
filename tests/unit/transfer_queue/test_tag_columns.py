"""Blocks of tags with empty places: what has left is neither listed nor kept alive, and few gaps cost no rebuilding."""

import random
import weakref
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st

from asyncrl.transfer_queue import tag_columns
from asyncrl.transfer_queue.row_tags import RowTags
from asyncrl.transfer_queue.table import ShardTable


class Value:
    """A value whose end can be seen."""


def table_with(tags: dict[str, dict[str, Any]]) -> ShardTable:
    table = ShardTable(0, "life")
    table.put(list(tags), "train", {}, tags, {})
    return table


def test_nothing_of_a_row_that_has_left_is_kept_alive() -> None:
    values = {f"k{number}": Value() for number in range(8)}
    seen = {key: weakref.ref(value) for key, value in values.items()}
    table = table_with({key: {"n": 1, "value": value} for key, value in values.items()})
    del values
    table.clear([f"k{number}" for number in range(6)], "train")
    # A new name takes a row to another block.
    table.put([], "train", {}, {"k6": {"value": None, "more": 1}}, {})
    assert [key for key, value in seen.items() if value() is not None] == ["k7"]


@pytest.mark.parametrize("where", [None, {"n": None}, {"n": None, "m": 3}])
def test_a_place_that_was_left_matches_nothing(where: dict[str, Any] | None) -> None:
    table = table_with({f"k{number}": {"n": None, "m": 3} for number in range(5)})
    table.clear(["k0", "k2", "k4"], "train")
    assert dict(RowTags(table.tags("train", where))) == {key: {"n": None, "m": 3} for key in ("k1", "k3")}
    table.clear(["k1"], "train")
    (group,) = table.tags("train", where)
    assert (group.keys, group.values) == (["k3"], [[None], [3]])


def test_a_few_gaps_among_many_rows_are_left_out_and_not_closed_up(monkeypatch: pytest.MonkeyPatch) -> None:
    closed: list[int] = []
    close_up = tag_columns.TagBlock.close_up

    def closed_up(block: tag_columns.TagBlock) -> None:
        closed.append(len(block.rows))
        close_up(block)

    monkeypatch.setattr(tag_columns.TagBlock, "close_up", closed_up)
    keys = [f"k{number}" for number in range(400)]
    table = table_with({key: {"n": number % 7} for number, key in enumerate(keys)})
    left, draw = dict.fromkeys(keys), random.Random(4)
    for count in range(200):
        gone = draw.choice(list(left))
        del left[gone]
        table.clear([gone], "train")
        assert list(RowTags(table.tags("train"))) == list(left)
        assert list(RowTags(table.tags("train", {"n": 3}))) == [key for key in left if int(key[1:]) % 7 == 3]
        assert len(closed) <= (count + 1) // tag_columns.SPARE_PLACES
    assert closed


@settings(max_examples=60)
@given(st.lists(st.integers(0, 9)), st.sets(st.integers(0, 30)))
def test_a_copy_without_some_places_has_all_others_in_their_order(column: list[int], gaps: set[int]) -> None:
    inside = sorted(gap for gap in gaps if gap < len(column))
    found = tag_columns.without(column, inside)
    assert found == [value for place, value in enumerate(column) if place not in gaps]
    assert found is not column
