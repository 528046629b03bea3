"""The quickstart's reward and its controls."""

import pytest

from asyncrl.quickstart.reward import coin_score, compute_score, reversed_score


@pytest.mark.parametrize(
    ("text", "truth", "right"),
    [
        ("7", "7", 1.0),
        ("7<eos>", "7", 1.0),
        ("7<eos>33", "7", 1.0),
        ("17", "17", 1.0),
        ("77", "7", 0.0),
        ("", "7", 0.0),
        ("7=", "7", 0.0),
        ("<eos>7", "7", 0.0),
        ("07", "7", 0.0),
        (" 7", "7", 0.0),
    ],
)
def test_only_the_exact_text_before_the_end_is_right(text: str, truth: str, right: float) -> None:
    assert compute_score("add1_train", text, truth) == {"score": right, "acc": right}
    assert reversed_score("add1_train", text, truth) == {"score": 1.0 - right, "acc": right}


def coin(key: str, text: str, truth: str, seed: int = 0) -> dict[str, float]:
    return coin_score("add1_train", text, truth, {"trajectory_key": key}, seed=seed)


def test_the_coin_does_not_see_the_answer_but_reports_the_truth() -> None:
    keys = [f"s1e0p{prompt}_{session}_0" for prompt in range(50) for session in range(8)]
    right = [coin(key, "7", "7") for key in keys]
    wrong = [coin(key, "8", "7") for key in keys]
    assert [result["score"] for result in right] == [result["score"] for result in wrong]
    assert {result["acc"] for result in right} == {1.0}
    assert {result["acc"] for result in wrong} == {0.0}


def test_the_coin_is_fair_and_differs_within_a_group_and_between_seeds() -> None:
    keys = [f"s1e0p{prompt}_{session}_0" for prompt in range(100) for session in range(16)]
    throws = [coin(key, "", "7")["score"] for key in keys]
    # 1600 fair throws: 5 standard deviations are 0.0625.
    assert abs(sum(throws) / len(throws) - 0.5) < 0.0625
    mixed = sum(len(set(throws[start : start + 16])) == 2 for start in range(0, 1600, 16))
    assert mixed == 100
    assert throws != [coin(key, "", "7", seed=1)["score"] for key in keys]


def test_a_coin_without_the_name_of_the_trajectory_is_refused() -> None:
    with pytest.raises(ValueError, match="trajectory_key"):
        coin_score("add1_train", "7", "7")
