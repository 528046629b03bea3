"""Estimators that take one score a row, against their definitions written as loops over rows."""

import math
import statistics
from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings, strategies as st

from asyncrl.algorithms.advantages import ESTIMATORS, AdvantageOptions, OutcomeEstimator, OutcomeRows
from asyncrl.algorithms.advantages.gdpo import GDPO

PLAIN = AdvantageOptions()
OUTCOME = {name: estimator for name, estimator in ESTIMATORS.items() if isinstance(estimator, OutcomeEstimator)}
Group = list[tuple[float, int]]
"""Score and length of each answer to one prompt."""


def rows(scores: list[float], groups: list[int], lengths: list[int] | None = None, dtype: torch.dtype = torch.float64) -> OutcomeRows:
    return OutcomeRows(torch.tensor(scores, dtype=dtype), torch.tensor(groups), torch.tensor(lengths or [1] * len(scores)))


def estimate(name: str, scores: list[float], groups: list[int], lengths: list[int] | None = None) -> list[float]:
    return OUTCOME[name](rows(scores, groups, lengths), PLAIN).tolist()


def mean_of(group: Group) -> float:
    return statistics.fmean(score for score, _ in group) if len(group) > 1 else 0.0


def deviation_of(group: Group) -> float:
    return statistics.stdev(score for score, _ in group) if len(group) > 1 else 1.0


def grpo_loop(group: Group) -> list[float]:
    return [(score - mean_of(group)) / (deviation_of(group) + 1e-6) for score, _ in group]


def passk_loop(group: Group) -> list[float]:
    order = sorted(range(len(group)), key=lambda at: (-group[at][0], at))
    lead = (group[order[0]][0] - group[order[1]][0]) / (deviation_of(group) + 1e-6)
    return [lead if at == order[0] else 0.0 for at in range(len(group))]


def rloo_loop(group: Group) -> list[float]:
    if len(group) == 1:
        return [group[0][0]]
    return [score - statistics.fmean(other for at, (other, _) in enumerate(group) if at != mine) for mine, (score, _) in enumerate(group)]


def opo_loop(group: Group) -> list[float]:
    tokens = sum(length for _, length in group)
    baseline = sum(score * length for score, length in group) / tokens if len(group) > 1 else 0.0
    return [score - baseline for score, _ in group]


def centred_loop(group: Group) -> list[float]:
    return [score - mean_of(group) for score, _ in group]


LOOPS: dict[str, Callable[[Group], list[float]]] = {
    "grpo": grpo_loop,
    "grpo_vectorized": grpo_loop,
    "grpo_passk": passk_loop,
    "gdpo": grpo_loop,
    "rloo": rloo_loop,
    "rloo_vectorized": rloo_loop,
    "reinforce_plus_plus_baseline": centred_loop,
    "opo": opo_loop,
    "gpg": centred_loop,
}


def loop(name: str, scores: list[float], groups: list[int], lengths: list[int]) -> list[float]:
    answer = [0.0] * len(scores)
    for label in set(groups):
        places = [place for place, group in enumerate(groups) if group == label]
        for place, value in zip(places, LOOPS[name]([(scores[place], lengths[place]) for place in places]), strict=True):
            answer[place] = value
    if name == "gpg":
        return [value * len(scores) / max(1, sum(score != 0 for score in scores)) for value in answer]
    if OUTCOME[name].whiten:
        tokens = [value for value, length in zip(answer, lengths, strict=True) for _ in range(length)]
        mean, variance = statistics.fmean(tokens), statistics.variance(tokens)
        return [(value - mean) / math.sqrt(variance + 1e-8) for value in answer]
    return answer


def test_every_outcome_estimator_has_its_loop() -> None:
    assert set(LOOPS) == set(OUTCOME)


@pytest.mark.parametrize("name", OUTCOME)
@settings(max_examples=20, deadline=None)
@given(st.lists(st.tuples(st.integers(-20, 20), st.integers(1, 9)), min_size=6, max_size=12), st.data())
def test_an_estimator_equals_its_loop(name: str, drawn: list[tuple[int, int]], data: st.DataObject) -> None:
    labels = data.draw(st.lists(st.integers(0, 2), min_size=len(drawn) - 6, max_size=len(drawn) - 6))
    groups = [0, 0, 1, 1, 2, 2, *labels]
    # Eighths have a float32 of their own: what differs is the estimator's doing, not the rounding of its input.
    scores, lengths = [score / 8 for score, _ in drawn], [length for _, length in drawn]
    ours = estimate(name, scores, groups, lengths)
    expected = loop(name, scores, groups, lengths)
    # A group whose scores are all one number is exactly 0 here; the loop leaves the rounding of its mean, which the epsilons blow up.
    assert ours == pytest.approx(expected, rel=1e-9, abs=2e-7)


def test_the_numbers_of_one_group_by_hand() -> None:
    scores, groups, lengths = [3.0, 1.0, 1.0, 0.0], [4] * 4, [1, 1, 2, 4]
    assert estimate("rloo", scores, groups) == pytest.approx([3 - 2 / 3, 1 - 4 / 3, 1 - 4 / 3, -5 / 3])
    assert estimate("opo", scores, groups, lengths) == pytest.approx([3 - 6 / 8, 1 - 6 / 8, 1 - 6 / 8, -6 / 8])
    assert estimate("gpg", scores, groups) == pytest.approx([4 / 3 * (score - 1.25) for score in scores])
    assert estimate("grpo_passk", scores, groups) == pytest.approx([2 / (statistics.stdev(scores) + 1e-6), 0, 0, 0])
    assert OUTCOME["grpo_passk"](rows(scores, groups), AdvantageOptions(normalise_by_std=False)).tolist() == [2.0, 0.0, 0.0, 0.0]


def test_a_tie_for_the_best_gives_nothing() -> None:
    assert estimate("grpo_passk", [1.0, 1.0, 0.0], [0, 0, 0]) == [0.0, 0.0, 0.0]


def test_the_lone_answer_is_one_documented_value_in_each_estimator() -> None:
    """A prompt with one answer of 2, beside one whose two answers are 1 and 0."""
    alone = {
        "grpo": 2 / (1 + 1e-6),
        "grpo_vectorized": 2 / (1 + 1e-6),
        "rloo": 2.0,
        "rloo_vectorized": 0.0,
        "opo": 2.0,
        "gpg": 2.0 * 3 / 2,
        "reinforce_plus_plus_baseline": (2 - 2 / 3) / math.sqrt(statistics.variance([2, 0.5, -0.5]) + 1e-8),
    }
    for name, expected in alone.items():
        assert estimate(name, [2.0, 1.0, 0.0], [0, 1, 1])[0] == pytest.approx(expected, rel=1e-6), name
    assert math.isfinite(estimate("gdpo", [2.0, 1.0, 0.0], [0, 1, 1])[0])
    with pytest.raises(ValueError, match="1 prompts have only one"):
        estimate("grpo_passk", [2.0, 1.0, 0.0], [0, 1, 1])


def test_gdpo_standardises_each_component_by_itself() -> None:
    """Components [1, 0, 0] and [0, 0, 3] with weights 1 and 2: 1.1547 and -0.5774 each, so [0, -1.7321, 1.7321] before whitening."""
    components = {"format": torch.tensor([1.0, 0, 0], dtype=torch.float64), "right": torch.tensor([0, 0, 3.0], dtype=torch.float64)}
    given_rows = OutcomeRows(
        torch.ones(3, dtype=torch.float64), torch.zeros(3, dtype=torch.int64), torch.tensor([1, 1, 1]), components=components
    )
    before = GDPO.compare(given_rows, AdvantageOptions(components=(("format", 1.0), ("right", 2.0))))
    assert before.tolist() == pytest.approx([0.0, -1.7320508, 1.7320508], abs=1e-5)
    assert GDPO(given_rows, AdvantageOptions(components=(("format", 1.0), ("right", 2.0)))).tolist() == pytest.approx([0, -1, 1], abs=1e-5)
    with pytest.raises(ValueError, match=r"components style; rewards gave format, right"):
        GDPO(given_rows, AdvantageOptions(components=(("style", 1.0),)))


@pytest.mark.parametrize("scores", [[1 / 3] * 7, [0.7] * 5, [0.7] * 8, [1e6] * 3, [0.0] * 4, [-0.1] * 6])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", OUTCOME)
def test_a_group_without_spread_gets_exactly_zero(name: str, scores: list[float], dtype: torch.dtype) -> None:
    advantages = OUTCOME[name](rows(scores, [0] * len(scores), dtype=dtype), PLAIN)
    assert advantages.dtype == dtype
    assert advantages.tolist() == [0.0] * len(scores)


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_score_that_is_not_finite_is_refused_by_row(bad: float) -> None:
    with pytest.raises(ValueError, match=r"scores must be finite; rows \[1\]"):
        rows([0.0, bad], [0, 0])
    with pytest.raises(ValueError, match=r"right must be finite; rows \[0\]"):
        OutcomeRows(torch.zeros(1), torch.zeros(1, dtype=torch.int64), torch.ones(1), components={"right": torch.tensor([bad])})


def test_rows_of_different_numbers_are_refused() -> None:
    with pytest.raises(ValueError, match="one shape"):
        OutcomeRows(torch.zeros(2), torch.zeros(3, dtype=torch.int64), torch.ones(2))


@pytest.mark.parametrize("name", OUTCOME)
def test_rows_without_a_trainable_token_and_no_row_at_all_are_survived(name: str) -> None:
    empty = OUTCOME[name](rows([1.0, 0.0, 1.0, 0.5], [0, 0, 1, 1], [0, 0, 0, 0]), PLAIN)
    assert bool(torch.isfinite(empty).all())
    assert OUTCOME[name](rows([], [], []), PLAIN).tolist() == []


def test_opo_takes_the_plain_mean_where_nobody_has_a_token() -> None:
    assert estimate("opo", [1.0, 0.0], [0, 0], [0, 0]) == [0.5, -0.5]
