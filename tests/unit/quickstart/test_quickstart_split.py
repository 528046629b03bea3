"""The split of pairs into trained and held out, and what a task may draw from each side."""

import hashlib

import pytest

from asyncrl.quickstart.split import Split, pairs_digest, shuffled, split_pairs
from asyncrl.quickstart.sums import Sums
from asyncrl.quickstart.tasks import one_digit, two_digits

ONE_DIGIT = Sums(digits=1).pairs


def test_every_split_has_the_asked_size_loses_no_pair_and_keeps_both_orders_together() -> None:
    for held_out in range(1, 97):
        split = split_pairs(ONE_DIGIT, held_out)
        assert len(split.held_out) == held_out
        assert sorted(split.trained + split.held_out) == ONE_DIGIT
        assert {pair[::-1] for pair in split.held_out} == set(split.held_out)
        assert not set(split.trained) & set(split.held_out)


# 97: the last two sums in the order of the hashes are not of a number with itself, so they add two pairs or none.
@pytest.mark.parametrize(("asked", "found"), [(97, 96), (101, 100)])
def test_a_number_that_would_part_the_orders_of_a_sum_or_that_is_too_high_is_refused(asked: int, found: int) -> None:
    with pytest.raises(ValueError, match=f"{found} of 100 pairs are held out, not {asked}"):
        split_pairs(ONE_DIGIT, asked)


@pytest.mark.parametrize("trained", [(7, 35), (35, 7)])
def test_a_split_with_a_held_out_pair_trained_in_either_order_is_refused(trained: tuple[int, int]) -> None:
    with pytest.raises(ValueError, match="1 held-out pairs are trained too"):
        Split(((1, 2), trained), ((7, 35), (3, 4)))


def test_the_digest_is_that_of_the_sorted_list_and_sees_every_pair() -> None:
    assert pairs_digest([(10, 2), (3, 4)]) == hashlib.sha256(b"3+4\n10+2\n").hexdigest()
    assert pairs_digest([(3, 4), (10, 2)]) == pairs_digest([(10, 2), (3, 4)])
    assert pairs_digest([(3, 4), (10, 3)]) != pairs_digest([(3, 4), (10, 2)])


def test_the_order_of_the_split_is_that_of_the_hashes_of_the_texts() -> None:
    def hashed(pair: tuple[int, int]) -> str:
        return hashlib.sha256(f"{pair[0]}+{pair[1]}".encode()).hexdigest()

    assert shuffled(ONE_DIGIT) == sorted(ONE_DIGIT, key=hashed)


def test_a_fifth_of_the_two_digit_pairs_is_held_out_and_judges_while_the_rest_is_trained() -> None:
    task = two_digits()
    assert (len(task.split.trained), len(task.split.held_out)) == (8_000, 2_000)
    assert len(task.judged) == 512
    assert set(task.judged) <= set(task.split.held_out)
    # Both kinds of answers on the held-out side: with and without a carry into a third digit.
    carried = sum(left + right > 99 for left, right in task.judged)
    assert 200 < carried < 312


def test_the_one_digit_task_holds_nothing_out() -> None:
    task = one_digit()
    assert task.split == Split(tuple(ONE_DIGIT), ())
    assert task.judged == tuple(ONE_DIGIT)
