"""Who is heard where a session left several outputs."""

import random

import pytest
import torch
from hypothesis import given, settings, strategies as st

from asyncrl.algorithms.advantages import ESTIMATORS, AdvantageOptions, Needs, OutcomeEstimator, OutcomeRows, multi_output, token_votes
from asyncrl.algorithms.advantages.grpo import GRPO
from asyncrl.algorithms.advantages.reinforce_plus_plus_baseline import REINFORCE_PLUS_PLUS_BASELINE

PLAIN = AdvantageOptions()
OUTCOME = {name: estimator for name, estimator in ESTIMATORS.items() if isinstance(estimator, OutcomeEstimator)}


def rows(scores: list[float], groups: list[int], sessions: list[int], indices: list[int], lengths: list[int] | None = None) -> OutcomeRows:
    def numbers(part: list[int]) -> torch.Tensor:
        return torch.tensor(part, dtype=torch.int64)

    columns = (numbers(groups), numbers(lengths or [1] * len(scores)), numbers(sessions), numbers(indices))
    return OutcomeRows(torch.tensor(scores, dtype=torch.float32), *columns)


def vote(scores: list[float], groups: list[int], sessions: list[int], indices: list[int], minimum_votes: int = 2) -> list[float]:
    return multi_output(GRPO, minimum_votes=minimum_votes)(rows(scores, groups, sessions, indices), PLAIN).tolist()


def test_only_the_last_output_votes_and_its_advantage_is_shared() -> None:
    advantages = vote([9.0, 1.0, 9.0, 0.0], [0] * 4, [0, 0, 0, 1], [1, 2, 0, 0])
    assert advantages == pytest.approx([0.7071, 0.7071, 0.7071, -0.7071], abs=1e-4)


def test_all_outputs_vote_where_that_is_asked_for() -> None:
    given_rows = rows([9.0, 1.0, 9.0, 0.0], [0] * 4, [0, 0, 0, 1], [1, 2, 0, 0])
    assert torch.equal(multi_output(GRPO, "all")(given_rows, PLAIN), GRPO(given_rows, PLAIN))
    with pytest.raises(ValueError, match="known: last, all"):
        multi_output(GRPO, "first")(given_rows, PLAIN)  # type: ignore[arg-type]


def test_sessions_must_be_known_where_last_outputs_vote() -> None:
    with pytest.raises(ValueError, match="needs sessions"):
        multi_output(GRPO)(OutcomeRows(torch.ones(2), torch.zeros(2, dtype=torch.int64), torch.ones(2, dtype=torch.int64)), PLAIN)


def test_an_index_is_compared_as_a_number() -> None:
    assert vote([0.0, 1.0, 0.0], [0, 0, 0], [0, 0, 1], [9, 10, 0]) == pytest.approx([0.7071, 0.7071, -0.7071], abs=1e-4)


def test_one_session_number_in_two_groups_means_two_sessions() -> None:
    assert vote([1.0, 0.0, 0.0, 1.0], [0, 0, 1, 1], [0, 1, 0, 1], [0] * 4) == pytest.approx([0.7071, -0.7071, -0.7071, 0.7071], abs=1e-4)


def test_a_single_vote_gets_zero_and_never_reaches_the_estimator() -> None:
    seen: list[list[float]] = []

    def compare(heard: OutcomeRows, options: AdvantageOptions) -> torch.Tensor:
        seen.append(heard.scores.tolist())
        return heard.scores

    spy = multi_output(OutcomeEstimator(compare, Needs(groups=True)))
    advantages = spy(rows([5.0, 7.0, 1.0, 3.0], [0, 0, 1, 1], [0, 0, 0, 1], [0, 1, 0, 0]), PLAIN)
    assert advantages.tolist() == [0.0, 0.0, 1.0, 3.0]
    assert seen == [[1.0, 3.0]]
    assert spy(rows([5.0], [0], [0], [0]), PLAIN).tolist() == [0.0]
    assert len(seen) == 1
    assert vote([5.0], [0], [0], [0], minimum_votes=1) == pytest.approx([5.0], abs=1e-4)
    alone = multi_output(OutcomeEstimator(compare, Needs()))
    assert alone(rows([5.0], [0], [0], [0]), PLAIN).tolist() == [5.0], "an estimator that compares nothing hears everybody"


def test_a_masked_last_output_may_void_its_session_but_still_votes() -> None:
    given_rows = rows([0.0, 1.0, 0.0], [0] * 3, [0, 0, 1], [0, 1, 0], lengths=[2, 0, 2])
    assert multi_output(GRPO, void_masked=True)(given_rows, PLAIN).tolist() == pytest.approx([0.0, 0.0, -0.7071], abs=1e-4)
    assert multi_output(GRPO)(given_rows, PLAIN).tolist() == pytest.approx([0.7071, 0.7071, -0.7071], abs=1e-4)


def test_whitening_counts_the_tokens_of_all_outputs() -> None:
    """Sessions (2 tokens + 1 token: -1 each) and (1 token: +1): mean -0.5, sample variance 1 over the four tokens."""
    given_rows = rows([9.0, -1.0, 1.0], [0, 0, 0], [0, 0, 1], [0, 1, 0], lengths=[2, 1, 1])
    advantages = multi_output(REINFORCE_PLUS_PLUS_BASELINE)(given_rows, PLAIN)
    assert advantages.tolist() == pytest.approx([-0.5, -0.5, 1.5], abs=1e-6)


def test_token_baselines_are_made_of_last_outputs_of_groups_that_have_two() -> None:
    groups, sessions, indices = (torch.tensor(part) for part in ([0, 0, 0, 1, 1], [0, 0, 1, 0, 0], [0, 1, 0, 0, 1]))
    assert token_votes(groups, sessions, indices).tolist() == [False, True, True, False, False]
    assert token_votes(groups, sessions, indices, minimum_votes=1).tolist() == [False, True, True, False, True]


@pytest.mark.parametrize("name", OUTCOME)
@settings(max_examples=12, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 2), st.integers(0, 3), st.integers(0, 3)), min_size=1, max_size=24, unique=True),
    st.randoms(use_true_random=False),
)
def test_votes_do_not_depend_on_row_order(name: str, drawn: list[tuple[int, int, int]], shuffle: random.Random) -> None:
    scored = {row: (shuffle.randint(-5, 5) / 2, shuffle.randint(0, 4)) for row in drawn}
    shuffled = list(drawn)
    shuffle.shuffle(shuffled)

    def by_row(order: list[tuple[int, int, int]]) -> dict[tuple[int, int, int], float]:
        groups, sessions, indices = (list(column) for column in zip(*order, strict=True))
        scores, lengths = ([scored[row][part] for row in order] for part in (0, 1))
        given_rows = rows(scores, groups, sessions, indices, [int(length) for length in lengths])
        return dict(zip(order, multi_output(OUTCOME[name])(given_rows, PLAIN).tolist(), strict=True))

    first, second = by_row(drawn), by_row(shuffled)
    assert all(first[row] == pytest.approx(second[row], abs=1e-5) for row in drawn)
    assert len({(row[0], row[1]): first[row] for row in drawn}) == len({(row[0], row[1], first[row]) for row in drawn})
