"""The order of prompts: whole epochs, seeded, and the same from any point on."""

import msgspec
import pytest
from hypothesis import given, settings, strategies as st

from asyncrl.data.dataset import PromptStream, StreamState
from asyncrl.data.prompts import PromptRow
from asyncrl.errors import DataError


def rows(count: int) -> list[PromptRow]:
    return [PromptRow(prompt=f"p{index}", data_source="d", index=index) for index in range(count)]


def stream(count: int = 8, *, batch: int = 4, seed: int = 1, shuffle: bool = True) -> PromptStream:
    return PromptStream(rows(count), train_batch_size=batch, seed=seed, shuffle=shuffle)


def names(taken: list[tuple[str, PromptRow]]) -> list[tuple[str, int]]:
    return [(uid, row.index) for uid, row in taken]


def test_without_shuffle_the_order_is_that_of_the_file_and_the_rest_is_left_out() -> None:
    order = stream(5, batch=2, shuffle=False)
    assert (order.steps_per_epoch, order.prompts_per_epoch) == (2, 4)
    assert names(order.take(6)) == [("s1e0p0", 0), ("s1e0p1", 1), ("s1e0p2", 2), ("s1e0p3", 3), ("s1e1p0", 0), ("s1e1p1", 1)]


def test_each_epoch_has_its_own_permutation_and_every_row_once() -> None:
    order = stream()
    first, second = names(order.take(8)), names(order.take(8))
    assert sorted(index for _, index in first) == sorted(index for _, index in second) == list(range(8))
    assert [index for _, index in first] != [index for _, index in second]
    assert [uid for uid, _ in second] == [f"s1e1p{position}" for position in range(8)]
    assert names(stream().take(16)) == first + second
    assert names(stream(seed=2).take(8)) != first


def test_duplicate_prompts_get_distinct_uids() -> None:
    same = [PromptRow(prompt="again", data_source="d", index=index) for index in range(4)]
    taken = PromptStream(same, train_batch_size=2, seed=1, shuffle=True).take(8)
    assert len({uid for uid, _ in taken}) == 8


@pytest.mark.parametrize("stop", [1, 2, 3, 4, 5])
def test_a_resume_at_any_step_also_at_the_end_of_an_epoch_goes_on_with_the_right_rows(stop: int) -> None:
    whole = names(stream().take(24))
    first = stream()
    before = names(first.take(4 * stop))
    later = stream()
    later.restore(first.state())
    assert before + names(later.take(24 - 4 * stop)) == whole


def test_the_state_at_the_end_of_an_epoch_is_the_start_of_the_next() -> None:
    order = stream()
    order.take(8)
    assert (order.state().epoch, order.state().position, order.epoch) == (1, 0, 1)


@settings(max_examples=60, deadline=None)
@given(
    count=st.integers(1, 12),
    batch=st.integers(1, 5),
    seed=st.integers(0, 3),
    shuffle=st.booleans(),
    before=st.lists(st.integers(0, 9), max_size=6),
    after=st.integers(0, 30),
)
def test_restored_at_any_point_the_stream_goes_on_the_same(
    count: int, batch: int, seed: int, shuffle: bool, before: list[int], after: int
) -> None:
    if count < batch:
        return
    one = stream(count, batch=batch, seed=seed, shuffle=shuffle)
    taken = [use for part in before for use in names(one.take(part))]
    state = msgspec.msgpack.decode(msgspec.msgpack.encode(one.state()), type=StreamState)
    other = stream(count, batch=batch, seed=seed, shuffle=shuffle)
    other.take(3)
    other.restore(state)
    rest = names(one.take(after))
    assert names(other.take(after)) == rest
    assert one.state() == other.state()
    assert len({uid for uid, _ in taken + rest}) == sum(before) + after


def test_fewer_rows_than_one_batch_are_refused() -> None:
    with pytest.raises(DataError, match=r"3 prompts are fewer than one batch: data\.train_batch_size=4"):
        stream(3, batch=4)


@pytest.mark.parametrize(
    "other",
    [stream(9, batch=4), stream(8, batch=3), stream(8, seed=2), stream(8, shuffle=False)],
)
def test_a_position_in_other_data_is_refused(other: PromptStream) -> None:
    with pytest.raises(DataError, match="does not fit this run"):
        stream().restore(other.state())


@pytest.mark.parametrize(("epoch", "position"), [(-1, 0), (0, -1), (0, 8)])
def test_an_impossible_position_is_refused(epoch: int, position: int) -> None:
    state = msgspec.structs.replace(stream().state(), epoch=epoch, position=position)
    with pytest.raises(DataError, match="no such data position"):
        stream().restore(state)
