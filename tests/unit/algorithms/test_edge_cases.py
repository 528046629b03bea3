"""The table of edge cases in ``docs/algorithms.md``, line by line, for every name: what other tests hold is not held again."""

import math
from pathlib import Path

import pytest
import torch
from torch import Tensor

from asyncrl.algorithms.advantages import (
    ESTIMATORS,
    AdvantageOptions,
    OutcomeEstimator,
    OutcomeRows,
    TokenEstimator,
    TokenRows,
    multi_output,
    token_votes,
)

PLAIN = AdvantageOptions()
OUTCOME = {name: estimator for name, estimator in ESTIMATORS.items() if isinstance(estimator, OutcomeEstimator)}
TOKEN = {name: estimator for name, estimator in ESTIMATORS.items() if isinstance(estimator, TokenEstimator)}
WHITENED = ("gae", "reinforce_plus_plus")
PAGE = Path(__file__).resolve().parents[3] / "docs" / "algorithms.md"


def token_rows(rewards: Tensor, mask: Tensor, groups: list[int], votes: Tensor | None = None) -> TokenRows:
    """With values of 0, a baseline of 0 and a policy that is as likely to sample one token as the other."""
    zeros, half = torch.zeros_like(rewards), torch.full_like(rewards, 0.5)
    return TokenRows(
        rewards,
        mask,
        torch.tensor(groups, dtype=torch.int64),
        votes=votes,
        values=zeros,
        baselines=zeros.sum(-1),
        old_log_probs=half.log(),
        sum_pi_squared=half,
    )


def test_the_page_has_a_line_for_each_case() -> None:
    table = PAGE.read_text().split("## Edge cases")[1].split("\n## ")[0]
    cases = [line.split("|")[1].strip() for line in table.splitlines() if line.startswith("| ") and "---" not in line][1:]
    for case in (
        "group of one",
        "eight times 0.7 in float32",
        "fully masked row",
        "fully masked batch",
        "empty response",
        "missing session",
    ):
        assert case in cases
    assert any("NaN" in case and "reward" in case for case in cases)


@pytest.mark.parametrize("name", OUTCOME)
def test_in_training_a_group_of_one_gets_zero_and_changes_no_other_group(name: str) -> None:
    numbers = torch.tensor([0, 0, 0, 0, 7])
    rows = OutcomeRows(torch.tensor([1.0, 0.0, 0.5, 0.25, 9.0]), numbers, torch.tensor([3, 1, 2, 2, 0]), torch.arange(5), numbers * 0)
    advantages = multi_output(OUTCOME[name])(rows, PLAIN)
    four = multi_output(OUTCOME[name])(rows.take(torch.arange(4)), PLAIN)
    torch.testing.assert_close(advantages[:4], four)
    if not OUTCOME[name].whiten:  # whitened, the zero moves with the mean of the batch; the row has no token that would get it
        assert advantages[4].item() == 0.0


@pytest.mark.parametrize("scores", [[0.7] * 8, [1 / 3] * 7, [1e6] * 3])
@pytest.mark.parametrize("name", TOKEN)
def test_equal_token_rewards_in_float32_leave_no_noise_to_blow_up(name: str, scores: list[float]) -> None:
    """One token each. What is whitened or has a baseline gets nothing, and ``remax`` the difference to its greedy score."""
    rewards = torch.tensor(scores)[:, None]
    found = TOKEN[name](token_rows(rewards, torch.ones_like(rewards), [0] * len(scores)), PLAIN)
    assert found.advantages.dtype == torch.float32
    expected = rewards if name == "remax" else torch.zeros_like(rewards)
    torch.testing.assert_close(found.advantages, expected, rtol=0, atol=2e-7 * scores[0])


@pytest.mark.parametrize("name", OUTCOME)
def test_a_fully_masked_row_votes_and_weighs_nothing(name: str) -> None:
    """Its score is in the group; its length is 0 in the baseline of ``opo`` and in whitening."""
    scores, groups = torch.tensor([1.0, 0.0, 0.5, 2.0, 1.0, 4.0], dtype=torch.float64), torch.tensor([0, 0, 0, 1, 1, 0])
    lengths = torch.tensor([2, 3, 4, 1, 2, 0])
    with_it = OUTCOME[name](OutcomeRows(scores, groups, lengths), PLAIN)[:5]
    without = OUTCOME[name](OutcomeRows(scores[:5], groups[:5], lengths[:5]), PLAIN)
    if name == "opo":
        torch.testing.assert_close(with_it, without)
    else:
        assert not torch.allclose(with_it, without), "it votes"
    if OUTCOME[name].whiten:
        tokens = with_it.repeat_interleave(lengths[:5])
        assert [tokens.mean().item(), tokens.var().item()] == pytest.approx([0, 1], abs=1e-6)


@pytest.mark.parametrize("name", TOKEN)
def test_a_fully_masked_row_is_in_no_moment_and_no_baseline(name: str) -> None:
    generator = torch.Generator().manual_seed(4)
    rewards = torch.randn(4, 3, generator=generator, dtype=torch.float64)
    mask = torch.tensor([[1, 1, 1], [1, 0, 1], [1, 1, 0], [0, 0, 0]])
    found = TOKEN[name](token_rows(rewards, mask, [0] * 4), PLAIN)
    assert not bool(found.advantages[3].any())
    torch.testing.assert_close(found.advantages[:3], TOKEN[name](token_rows(rewards[:3], mask[:3], [0] * 3), PLAIN).advantages)


@pytest.mark.parametrize("name", TOKEN)
def test_one_trainable_token_in_the_batch_has_nothing_to_be_compared_with(name: str) -> None:
    """Whitened it is 0; the others measure it against nothing, as they do the token that only the longest answer reaches."""
    rewards, mask = torch.full((2, 2), 3.0), torch.tensor([[0, 1], [0, 0]])
    found = TOKEN[name](token_rows(rewards, mask, [0, 0]), PLAIN).advantages
    assert found.tolist() == [[0.0, 0.0 if name in WHITENED else 3.0], [0.0, 0.0]]


@pytest.mark.parametrize("name", TOKEN)
def test_a_prompt_with_one_session_left_gets_zero_from_the_estimators_that_compare(name: str) -> None:
    groups, sessions = torch.tensor([0, 0, 1]), torch.tensor([0, 1, 0])
    votes = token_votes(groups, sessions, torch.zeros(3, dtype=torch.int64))
    assert votes.tolist() == [True, True, False]
    rewards = torch.tensor([[1.0, 2.0], [0.0, 1.0], [5.0, 5.0]])
    found = TOKEN[name](token_rows(rewards, torch.ones(3, 2), groups.tolist(), votes), PLAIN).advantages
    assert bool(found[2].any()) != TOKEN[name].needs.groups


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("name", ESTIMATORS)
def test_a_reward_that_is_no_number_is_refused_and_its_row_named(name: str, bad: float) -> None:
    if name in OUTCOME:
        with pytest.raises(ValueError, match=r"scores must be finite; rows \[1\]"):
            OUTCOME[name](OutcomeRows(torch.tensor([0.0, bad]), torch.tensor([0, 0]), torch.tensor([1, 1])), PLAIN)
        return
    rewards, mask = torch.tensor([[0.0, 1.0], [1.0, bad]]), torch.tensor([[1, 1], [1, 1]])
    with pytest.raises(ValueError, match=r"rewards must be finite; rows \[1\]"):
        TOKEN[name](token_rows(rewards, mask, [0, 0]), PLAIN)
    mask[1, 1] = 0
    assert bool(torch.isfinite(TOKEN[name](token_rows(rewards, mask, [0, 0]), PLAIN).advantages).all())
