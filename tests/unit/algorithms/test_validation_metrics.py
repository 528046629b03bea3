"""Mean, best, worst and majority of n answers, by hand and against exact expectations."""

import itertools
import math
import statistics

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from asyncrl.algorithms.validation_metrics import (
    Answers,
    Bootstrap,
    best_and_worst,
    draw_sizes,
    first_of_the_most,
    log_names,
    majority,
    majority_value,
    validation_metrics,
)


def answers(by_uid: dict[str, list[float | None]], source: str = "s", name: str = "acc", votes: list[str | None] | None = None) -> Answers:
    pairs = [(uid, value) for uid, values in by_uid.items() for value in values]
    return Answers([source] * len(pairs), [uid for uid, _ in pairs], {name: [value for _, value in pairs]}, votes)


def test_draw_sizes_are_powers_of_two_and_n() -> None:
    assert [draw_sizes(n) for n in (1, 2, 3, 8, 9)] == [[], [2], [2, 3], [2, 4, 8], [2, 4, 8, 9]]


def test_means_are_taken_over_answers_first_and_over_uids_then() -> None:
    found = validation_metrics(answers({"a": [1, 0], "b": [1, 1], "c": [0]}))["s"]["acc"]
    assert found["mean@2"] == 0.75
    assert found["std@2"] == 0.25
    assert found["mean@1"] == 0.0
    assert "std@1" not in found


def test_two_rows_of_one_text_are_two_uids() -> None:
    assert validation_metrics(answers({"row 1": [1, 1], "row 2": [0, 0]}))["s"]["acc"]["std@2"] == 0.0


def test_every_answer_counts_once() -> None:
    found = validation_metrics(answers({f"u{row}": [float(row < 7)] for row in range(10)}))
    assert found["s"]["acc"] == {"mean@1": 0.7}


def test_a_variable_that_only_some_answers_have_is_averaged_over_those() -> None:
    given_answers = Answers(["s"] * 3, ["a", "b", "c"], {"reward": [1.0, 0.5, 0.0], "acc": [1.0, None, 0.0], "other": [None, None, 2.0]})
    found = validation_metrics(given_answers)["s"]
    assert {name: metrics["mean@1"] for name, metrics in found.items()} == {"reward": 0.5, "acc": 0.5, "other": 2.0}


def exact(values: list[float], k: int, pick: object) -> tuple[float, float]:
    """Mean and deviation over all n^k draws."""
    drawn = [pick(draw) for draw in itertools.product(values, repeat=k)]  # type: ignore[operator]
    return statistics.fmean(drawn), statistics.pstdev(drawn)


@pytest.mark.parametrize("values", [[0.0, 1.0, 1.0], [0.3, -1.2, 0.9, 0.9]])
@pytest.mark.parametrize("k", [2, 3])
def test_drawing_comes_close_to_the_expectation(values: list[float], k: int) -> None:
    bootstrap = Bootstrap(20_000, 7)
    for (mean, deviation), pick in zip(best_and_worst(np.array([values]), k, bootstrap), (max, min), strict=True):
        expected, spread = exact(values, k, pick)
        assert float(mean[0]) == pytest.approx(expected, abs=5 * spread / math.sqrt(20_000))
        assert float(deviation[0]) == pytest.approx(spread, abs=0.03)
    votes = np.array([[round(value * 10) % 3 for value in values]])

    def winner(draw: tuple[int, ...]) -> float:
        codes = [int(votes[0, place]) for place in draw]
        return values[draw[codes.index(max(codes, key=codes.count))]]

    over_places = [winner(draw) for draw in itertools.product(range(len(values)), repeat=k)]
    mean, _ = majority(np.array([values]), votes, k, bootstrap)
    assert float(mean[0]) == pytest.approx(statistics.fmean(over_places), abs=5 * statistics.pstdev(over_places) / math.sqrt(20_000))


@settings(max_examples=40, deadline=None)
@given(st.lists(st.sampled_from("abcd"), min_size=1, max_size=9))
def test_the_majority_is_the_most_frequent_vote_that_stands_first(votes: list[str]) -> None:
    values = [float(place) for place in range(len(votes))]
    expected = votes.index(max(votes, key=votes.count))
    assert majority_value(votes, values) == expected
    assert int(first_of_the_most(np.array([[ord(vote) for vote in votes]]))[0]) == expected


def test_equal_seeds_draw_equal_answers_and_numpys_own_generator_is_left_alone() -> None:
    before = np.random.get_state()[1].tolist()  # type: ignore[index]
    first, again, other = (Bootstrap(50, seed).places(6, 3).tolist() for seed in (1, 1, 2))
    assert first == again != other
    assert np.random.get_state()[1].tolist() == before  # type: ignore[index]


def test_a_uid_with_a_missing_vote_has_no_majority() -> None:
    given_answers = answers({"a": [1, 0], "b": [1, 1]}, votes=["x", "y", "x", None])
    assert validation_metrics(given_answers)["s"]["acc"]["maj@2/mean"] == pytest.approx(
        validation_metrics(answers({"a": [1, 0]}, votes=["x", "y"]))["s"]["acc"]["maj@2/mean"]
    )
    assert "maj@2/mean" not in validation_metrics(answers({"b": [1, 1]}, votes=["x", None]))["s"]["acc"]


def test_missing_answers_count_as_wrong_beside_the_accuracy_of_those_that_came() -> None:
    found = validation_metrics(answers({"a": [1.0]}), expected={("s", "a"): 2, ("s", "b"): 2})["s"]
    assert found["acc"]["mean@2"] == 0.25
    assert found["acc_success_only"] == {"mean@1": 1.0}
    rewards = validation_metrics(answers({"a": [1.0]}, name="reward"), expected={("s", "a"): 2})["s"]
    assert rewards == {"reward": {"mean@1": 1.0}}


def test_the_core_of_a_source_is_its_accuracy_or_else_its_reward() -> None:
    both = Answers(["s", "s"], ["a", "a"], {"acc": [1.0, 0.0], "reward": [0.5, 0.5]}, ["x", "x"])
    named = log_names(validation_metrics(both), turns=[1, 4])
    core = {name.removeprefix("val-core/s/acc/") for name in named if name.startswith("val-core")}
    assert core == {"mean@2", "best@2/mean", "best@2/std", "maj@2/mean", "maj@2/std"}
    assert named["val-aux/s/reward/mean@2"] == 0.5
    assert (named["val-aux/num_turns/min"], named["val-aux/num_turns/max"], named["val-aux/num_turns/mean"]) == (1, 4, 2.5)
    assert log_names(validation_metrics(answers({"a": [1.0]}, name="reward"))) == {"val-core/s/reward/mean@1": 1.0}


def test_nothing_gives_nothing() -> None:
    assert log_names(validation_metrics(Answers([], [], {}))) == {}
