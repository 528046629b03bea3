"""Tags as columns are a mapping like any other."""

from typing import Any

from hypothesis import given, strategies as st

from asyncrl.transfer_queue.row_tags import RowTags
from asyncrl.transfer_queue.table import ShardTable

TAGS = st.dictionaries(
    st.text(max_size=3), st.dictionaries(st.sampled_from(["a", "b", "c"]), st.one_of(st.none(), st.integers(), st.text()), max_size=3)
)


def table_with(tags: dict[str, dict[str, Any]]) -> ShardTable:
    table = ShardTable(0, "life")
    table.put(list(tags), "train", {}, tags, {})
    return table


def seen(table: ShardTable) -> list[tuple[list[str], list[str], list[list[Any]]]]:
    return [(group.names, group.keys, group.values) for group in table.tags("train")]


@given(TAGS)
def test_what_is_grouped_reads_as_it_was(tags: dict[str, dict[str, Any]]) -> None:
    found = RowTags(table_with(tags).tags("train"))
    assert found == tags
    assert len(found) == len(tags)
    assert all(found[key] == tag and key in found for key, tag in tags.items())
    assert found.column("a", 7) == {key: tag.get("a", 7) for key, tag in tags.items()}


def test_tags_with_the_same_names_lie_in_one_group() -> None:
    table = table_with({"x": {"a": 1, "b": 2}, "y": {"a": 3, "b": 4}, "m": {"s": "run"}})
    assert seen(table) == [(["a", "b"], ["x", "y"], [[1, 3], [2, 4]]), (["s"], ["m"], [["run"]])]
    assert [group.keys for group in table.tags("train", {"b": 4})] == [["y"]]
    assert [group.keys for group in table.tags("train", {"b": 4, "a": 1})] == []


def test_a_new_name_takes_a_row_to_another_group_and_a_new_value_does_not() -> None:
    table = table_with({"x": {"a": 1}, "y": {"a": 3}})
    table.put([], "train", {}, {"x": {"a": 5}, "y": {"b": 6}}, {})
    assert seen(table) == [(["a"], ["x"], [[5]]), (["a", "b"], ["y"], [[3], [6]])]


def test_groups_stay_as_they_were_read_and_leave_out_rows_that_are_gone() -> None:
    keys = [f"k{number}" for number in range(200)]
    table = table_with({key: {"n": number} for number, key in enumerate(keys)})
    (before,) = table.tags("train")
    for gone in (keys[1:150], keys[160:170], keys[:1]):
        table.clear(gone, "train")
        left = [(key, row["n"]) for key, row in table.list_rows("train").items()]
        (group,) = table.tags("train")
        assert list(zip(group.keys, group.values[0], strict=True)) == left
    table.put(["k0"], "train", {}, {"k0": {"n": -1}}, {})
    assert table.tags("train")[0].keys[-1] == "k0"
    assert before.keys == keys
    assert before.values == [list(range(200))]
    table.clear(keys, "train")
    assert table.tags("train") == []
