"""Tags as columns are a mapping like any other."""

from typing import Any

from hypothesis import given, strategies as st

from asyncrl.transfer_queue.row_tags import RowTags, grouped_tags

TAGS = st.dictionaries(
    st.text(max_size=3), st.dictionaries(st.sampled_from(["a", "b", "c"]), st.one_of(st.none(), st.integers(), st.text()), max_size=3)
)


@given(TAGS)
def test_what_is_grouped_reads_as_it_was(tags: dict[str, dict[str, Any]]) -> None:
    found = RowTags(grouped_tags(list(tags), list(tags.values())))
    assert found == tags
    assert len(found) == len(tags)
    assert all(found[key] == tag and key in found for key, tag in tags.items())
    assert found.column("a", 7) == {key: tag.get("a", 7) for key, tag in tags.items()}


def test_tags_with_the_same_names_lie_in_one_group() -> None:
    groups = grouped_tags(["x", "y", "m"], [{"a": 1, "b": 2}, {"a": 3, "b": 4}, {"s": "run"}])
    assert [(group.names, group.keys, group.values) for group in groups] == [
        (["a", "b"], ["x", "y"], [[1, 3], [2, 4]]),
        (["s"], ["m"], [["run"]]),
    ]
