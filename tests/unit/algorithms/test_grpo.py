"""GRPO advantages and votes."""

import math
import random
import statistics

import pytest
import torch
from hypothesis import given, settings, strategies as st

from asyncrl.algorithms.advantages import ESTIMATORS
from asyncrl.algorithms.advantages.grpo import grpo
from asyncrl.algorithms.advantages.votes import outcome_advantages


def loop(scores: list[float], groups: list[int]) -> list[float]:
    """The definition, row by row."""
    answer = []
    for score, group in zip(scores, groups, strict=True):
        peers = [other for other, label in zip(scores, groups, strict=True) if label == group]
        mean, deviation = (statistics.fmean(peers), statistics.stdev(peers)) if len(peers) > 1 else (0.0, 1.0)
        answer.append((score - mean) / (deviation + 1e-6))
    return answer


def test_the_documented_example() -> None:
    advantages = grpo(torch.tensor([1.0, 0, 0, 0, 1, 1]), torch.tensor([7, 7, 7, -2, -2, -2]))
    assert advantages.tolist() == pytest.approx([1.1547, -0.57735, -0.57735, -1.1547, 0.57735, 0.57735], abs=2e-5)


def test_without_the_deviation_only_the_mean_is_taken_off() -> None:
    advantages = grpo(torch.tensor([1.0, 0.0, 5.0, 10.0]), torch.tensor([0, 0, 1, 1]), normalise_by_std=False)
    assert advantages.tolist() == [0.5, -0.5, -2.5, 2.5]


@pytest.mark.parametrize(
    ("scores", "expected"),
    [
        ([1000.0, 1000.0, 1000.0, 1000.001], [-0.499, -0.499, -0.499, 1.497]),
        ([0.5, 0.5001, 0.5, 0.5001], [-0.851, 0.851, -0.851, 0.851]),
    ],
)
def test_a_small_spread_in_float32_is_kept(scores: list[float], expected: list[float]) -> None:
    assert grpo(torch.tensor(scores), torch.zeros(4, dtype=torch.int64)).tolist() == pytest.approx(expected, abs=2e-3)


@pytest.mark.parametrize("scores", [[1 / 3] * 7, [0.7] * 5, [0.7] * 8, [1e6] * 3, [0.0] * 4, [-0.1] * 6])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_group_without_spread_gets_exactly_zero(scores: list[float], dtype: torch.dtype) -> None:
    assert grpo(torch.tensor(scores, dtype=dtype), torch.zeros(len(scores), dtype=torch.int64)).tolist() == [0.0] * len(scores)


def test_equal_scores_but_for_rounding_have_no_spread() -> None:
    almost = torch.tensor([0.1 + 0.2, 0.3], dtype=torch.float64)
    assert almost[0] != almost[1]
    assert grpo(almost, torch.tensor([0, 0])).tolist() == [0.0, 0.0]


def test_a_group_of_one_keeps_its_score() -> None:
    assert grpo(torch.tensor([2.0], dtype=torch.float64), torch.tensor([3])).tolist() == pytest.approx([2 / (1 + 1e-6)])


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_score_that_is_not_finite_is_refused_by_row(bad: float) -> None:
    with pytest.raises(ValueError, match=r"rows \[1\]"):
        grpo(torch.tensor([0.0, bad]), torch.tensor([0, 0]))


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 4), st.integers(-50, 50)), min_size=1, max_size=30), st.randoms(use_true_random=False))
def test_every_name_equals_the_loop_in_any_row_order(rows: list[tuple[int, int]], shuffle: random.Random) -> None:
    shuffle.shuffle(rows)
    groups, scores = [group for group, _ in rows], [score / 10 for _, score in rows]
    for estimator in ESTIMATORS.values():
        ours = estimator(torch.tensor(scores), torch.tensor(groups))
        assert ours.dtype == torch.float32
        assert ours.tolist() == pytest.approx(loop(scores, groups), abs=2e-4, rel=1e-5)


def vote(scores: list[float], groups: list[int], sessions: list[int], indices: list[int], minimum_votes: int = 2) -> list[float]:
    group, session, index = (torch.tensor(values) for values in (groups, sessions, indices))
    return outcome_advantages(grpo, torch.tensor(scores), group, session, index, minimum_votes=minimum_votes).tolist()


def test_only_the_last_output_votes_and_its_advantage_is_shared() -> None:
    advantages = vote([9.0, 1.0, 9.0, 0.0], [0] * 4, [0, 0, 0, 1], [1, 2, 0, 0])
    assert advantages == pytest.approx([0.7071, 0.7071, 0.7071, -0.7071], abs=1e-4)


def test_an_index_is_compared_as_a_number() -> None:
    assert vote([0.0, 1.0, 0.0], [0, 0, 0], [0, 0, 1], [9, 10, 0]) == pytest.approx([0.7071, 0.7071, -0.7071], abs=1e-4)


def test_one_session_number_in_two_groups_means_two_sessions() -> None:
    assert vote([1.0, 0.0, 0.0, 1.0], [0, 0, 1, 1], [0, 1, 0, 1], [0] * 4) == pytest.approx([0.7071, -0.7071, -0.7071, 0.7071], abs=1e-4)


def test_a_single_vote_gets_zero_and_never_reaches_the_estimator() -> None:
    seen: list[list[float]] = []

    def spy(scores: torch.Tensor, groups: torch.Tensor) -> torch.Tensor:
        seen.append(scores.tolist())
        return grpo(scores, groups)

    sessions, indices = torch.tensor([0, 0, 0, 1]), torch.tensor([0, 1, 0, 0])
    advantages = outcome_advantages(spy, torch.tensor([5.0, 7.0, 1.0, 0.0]), torch.tensor([0, 0, 1, 1]), sessions, indices)
    assert advantages[:2].tolist() == [0.0, 0.0]
    assert seen == [[1.0, 0.0]]
    assert outcome_advantages(spy, torch.tensor([5.0]), *torch.zeros(3, 1, dtype=torch.int64)).tolist() == [0.0]
    assert len(seen) == 1
    assert vote([5.0], [0], [0], [0], minimum_votes=1) == pytest.approx([5.0], abs=1e-4)


def test_a_masked_last_output_may_void_its_session_but_still_votes() -> None:
    groups, sessions, indices = torch.zeros(3, dtype=torch.int64), torch.tensor([0, 0, 1]), torch.tensor([0, 1, 0])
    trainable = torch.tensor([True, False, True])
    advantages = outcome_advantages(grpo, torch.tensor([0.0, 1.0, 0.0]), groups, sessions, indices, trainable=trainable)
    assert advantages.tolist() == pytest.approx([0.0, 0.0, -0.7071], abs=1e-4)


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 2), st.integers(0, 3), st.integers(0, 3)), min_size=1, max_size=24, unique=True),
    st.randoms(use_true_random=False),
)
def test_votes_do_not_depend_on_row_order(rows: list[tuple[int, int, int]], shuffle: random.Random) -> None:
    scored = {row: shuffle.randint(-5, 5) / 2 for row in rows}
    shuffled = list(rows)
    shuffle.shuffle(shuffled)

    def by_row(order: list[tuple[int, int, int]]) -> dict[tuple[int, int, int], float]:
        groups, sessions, indices = (list(column) for column in zip(*order, strict=True))
        return dict(zip(order, vote([scored[row] for row in order], groups, sessions, indices), strict=True))

    first, second = by_row(rows), by_row(shuffled)
    assert all(first[row] == pytest.approx(second[row], abs=1e-6) for row in rows)
    assert len({(row[0], row[1]): first[row] for row in rows}) == len({(row[0], row[1], first[row]) for row in rows})
