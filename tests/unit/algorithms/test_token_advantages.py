"""Token-level estimators: definitions written as loops, and the two phases over ranks."""

import math
import statistics
from typing import Any

import pytest
import torch
from hypothesis import given, settings, strategies as st
from torch import Tensor

from asyncrl.algorithms.advantages import ESTIMATORS, AdvantageOptions, TokenAdvantages, TokenEstimator, TokenRows
from asyncrl.algorithms.advantages.scan import carried_back, reverse_scan

TOKEN = {name: estimator for name, estimator in ESTIMATORS.items() if isinstance(estimator, TokenEstimator)}
FIELDS = ("values", "old_log_probs", "sum_pi_squared", "rollout_is_weights")
JUNK = (math.nan, math.inf, -math.inf, 1e30)


def batch(seed: int, rows: int = 8, columns: int = 7, groups: int = 3) -> dict[str, Any]:
    """Random rows with tool tokens between, leading zeros and an empty row; every group has one row at least."""
    random = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=random, dtype=torch.float64)

    mask = (torch.rand(rows, columns, generator=random) < 0.7).long()
    mask[0] = 0
    return {
        "rewards": normal(rows, columns),
        "mask": mask,
        "groups": torch.cat([torch.arange(groups), torch.randint(groups, (rows - groups,), generator=random)]),
        "values": normal(rows, columns),
        "baselines": normal(rows),
        "old_log_probs": -normal(rows, columns).abs(),
        "sum_pi_squared": torch.rand(rows, columns, generator=random, dtype=torch.float64),
        "rollout_is_weights": torch.rand(rows, columns, generator=random, dtype=torch.float64) + 0.5,
    }


OPTIONS = AdvantageOptions(gamma=0.9, lam=0.7)


def run(name: str, fields: dict[str, Any], options: AdvantageOptions = OPTIONS) -> TokenAdvantages:
    return TOKEN[name](TokenRows(**fields), options)


def whiten(values: dict[tuple[int, int], float]) -> dict[tuple[int, int], float]:
    mean, variance = statistics.fmean(values.values()), statistics.variance(values.values())
    return {place: (value - mean) / math.sqrt(variance + 1e-8) for place, value in values.items()}


def gae_loop(b: dict[str, Any], options: AdvantageOptions) -> tuple[dict[tuple[int, int], float], dict[tuple[int, int], float]]:
    raw, returns = {}, {}
    for row, mask in enumerate(b["mask"].tolist()):
        after, value_after = 0.0, 0.0
        for column in reversed([column for column, one in enumerate(mask) if one]):
            value = float(b["values"][row, column])
            after = float(b["rewards"][row, column]) + options.gamma * value_after - value + options.gamma * options.lam * after
            raw[row, column], returns[row, column], value_after = after, after + value, value
    return whiten(raw), returns


def return_loop(b: dict[str, Any], gamma: float) -> dict[tuple[int, int], float]:
    returns = {}
    for row, mask in enumerate(b["mask"].tolist()):
        after = 0.0
        for column in reversed([column for column, one in enumerate(mask) if one]):
            after = float(b["rewards"][row, column]) + gamma * after
            returns[row, column] = after
    return returns


def baseline_loop(b: dict[str, Any], options: AdvantageOptions, *, compact: bool) -> dict[tuple[int, int], float]:
    """The token baselines place by place: column, or with ``compact`` number of sampled tokens before."""
    returns = return_loop(b, 1.0)
    weight: dict[tuple[int, int], float] = {}
    place: dict[tuple[int, int], int] = {}
    reach = {}
    for row, mask in enumerate(b["mask"].tolist()):
        running, columns = 0.0, [column for column, one in enumerate(mask) if one]
        for number, column in enumerate(columns):
            p = math.exp(float(b["old_log_probs"][row, column]))
            running += (1 - 2 * p + float(b["sum_pi_squared"][row, column])) * float(b["rollout_is_weights"][row, column]) ** 2
            weight[row, column], place[row, column] = running, number if compact else column
        reach[row] = len(columns) if compact else (columns[-1] + 1 if columns else 0)
    answer = {}
    for (row, column), gained in returns.items():
        at, group = place[row, column], int(b["groups"][row])
        peers = [other for other in reach if int(b["groups"][other]) == group]
        tokens = [key for key in place if key[0] in peers and place[key] == at]
        below = sum(weight[key] for key in tokens) + 1e-8
        baseline = sum(returns[key] * weight[key] for key in tokens) / below
        lone = len(peers) == 1 or (options.handle_zero_tail and sum(reach[other] > at for other in peers) == 1)
        answer[row, column] = gained - (0.0 if lone else baseline)
    return answer


def check(found: Tensor, expected: dict[tuple[int, int], float], mask: Tensor) -> None:
    dense = torch.zeros_like(found)
    for place, value in expected.items():
        dense[place] = value
    torch.testing.assert_close(torch.where(mask.bool(), found, 0.0), dense, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("seed", range(4))
def test_gae_equals_its_recursion(seed: int) -> None:
    b = batch(seed)
    found = run("gae", b)
    advantages, returns = gae_loop(b, OPTIONS)
    check(found.advantages, advantages, b["mask"])
    check(found.returns, returns, b["mask"])


@pytest.mark.parametrize("seed", range(4))
def test_reinforce_plus_plus_and_remax_equal_their_sums(seed: int) -> None:
    b = batch(seed)
    returns = return_loop(b, 0.9)
    found = run("reinforce_plus_plus", b)
    check(found.returns, returns, b["mask"])
    check(found.advantages, whiten(returns), b["mask"])
    undiscounted = return_loop(b, 1.0)
    expected = {place: value - float(b["baselines"][place[0]]) for place, value in undiscounted.items()}
    check(run("remax", b).advantages, expected, b["mask"])


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("tail", [True, False])
@pytest.mark.parametrize("name", ["optimal_token_baseline", "tir_optimal_token_baseline"])
def test_token_baselines_equal_their_loop_with_tools_between(name: str, tail: bool, seed: int) -> None:
    b = batch(seed)
    options = AdvantageOptions(handle_zero_tail=tail)
    check(run(name, b, options).advantages, baseline_loop(b, options, compact=name.startswith("tir")), b["mask"])


def test_the_tail_of_the_longest_answer_begins_after_the_column_that_the_second_longest_reaches() -> None:
    """Both have three sampled tokens; a count of three as a column index would cut off the baseline at column 3 already."""
    mask = torch.tensor([[1, 0, 1, 0, 1, 0], [1, 0, 0, 1, 0, 1]])
    rewards = torch.tensor([[0.0, 0, 0, 0, 1, 0], [0.0, 0, 0, 0, 0, 3]], dtype=torch.float64)
    half = torch.full((2, 6), 0.5, dtype=torch.float64)
    found = TOKEN["optimal_token_baseline"](
        TokenRows(rewards, mask, torch.zeros(2, dtype=torch.int64), old_log_probs=half.log(), sum_pi_squared=half), AdvantageOptions()
    )
    # w = 1 - 1 + 0.5 = 0.5 everywhere. Column 0: (1 * 0.5 + 3 * 0.5) / 1 = 2. Columns 2 to 4 hold one token each: its own return.
    # Only the second row reaches column 5.
    assert found.advantages.tolist() == [
        pytest.approx([-1, 0, 0, 0, 0, 0], abs=1e-6),
        pytest.approx([1, 0, 0, 0, 0, 3], abs=1e-6),
    ]


@settings(max_examples=30, deadline=None)
@given(st.lists(st.lists(st.tuples(st.integers(-5, 5), st.sampled_from([0.0, 0.5, 1.0])), min_size=1, max_size=9), min_size=1, max_size=3))
def test_a_scan_equals_its_recurrence(drawn: list[list[tuple[int, float]]]) -> None:
    width = max(map(len, drawn))
    padded = [row + [(0, 0.0)] * (width - len(row)) for row in drawn]
    values, decay = (torch.tensor([[pair[part] for pair in row] for row in padded], dtype=torch.float64) for part in (0, 1))
    expected = torch.zeros_like(values)
    for column in reversed(range(width)):
        expected[:, column] = values[:, column] + (decay[:, column] * expected[:, column + 1] if column + 1 < width else 0.0)
    torch.testing.assert_close(reverse_scan(values, decay), expected)


def test_a_value_is_carried_back_over_tool_tokens() -> None:
    mask = torch.tensor([[0, 1, 0, 0, 1, 0]])
    assert carried_back(torch.tensor([[0.0, 2, 0, 0, 3, 0]]), mask).tolist() == [[2, 2, 3, 3, 3, 0]]


def take(b: dict[str, Any], rows: list[int]) -> dict[str, Any]:
    return {name: value[rows] if isinstance(value, Tensor) else value for name, value in b.items()}


@pytest.mark.parametrize("name", TOKEN)
@settings(max_examples=12, deadline=None)
@given(seed=st.integers(0, 10_000), ranks=st.sampled_from([1, 2, 4]), order=st.permutations(range(8)), padding=st.integers(0, 2))
def test_a_batch_over_ranks_in_any_order_equals_the_whole(name: str, seed: int, ranks: int, order: list[int], padding: int) -> None:
    """The cut into ranks is that into micro-batches: a rank may have no row, and rows may be padded further."""
    b = batch(seed) | {"group_count": 3}
    whole = run(name, b)
    shares = [sorted(order[start::ranks]) for start in range(ranks)] + [[]]
    wide = {
        field: torch.nn.functional.pad(value, (0, padding)) if field in ("rewards", "mask", *FIELDS) else value
        for field, value in b.items()
    }
    estimator = TOKEN[name]
    parts = [TokenRows(**take(wide, share)) for share in shares]
    begun = [estimator.begin(part, OPTIONS) for part in parts]
    merged = estimator.merge(torch.stack([partial.summary for partial in begun]))
    for part, partial, share in zip(parts, begun, shares, strict=True):
        found = estimator.finish(part, partial, merged, OPTIONS)
        torch.testing.assert_close(found[:, :7], whole.advantages[share], rtol=1e-9, atol=1e-9)
        torch.testing.assert_close(partial.returns[:, :7], whole.returns[share], rtol=1e-9, atol=1e-9)
        assert found[:, 7:].eq(0).all()


@pytest.mark.parametrize("name", TOKEN)
@settings(max_examples=10, deadline=None)
@given(seed=st.integers(0, 10_000), junk=st.sampled_from(JUNK))
def test_what_lies_under_the_mask_does_not_matter_in_value_and_gradient(name: str, seed: int, junk: float) -> None:
    def found(b: dict[str, Any]) -> tuple[Tensor, list[Tensor]]:
        leaves = [b[field].requires_grad_() for field in ("rewards", *FIELDS)]
        advantages = run(name, b).advantages
        grads = torch.autograd.grad(advantages.square().sum(), leaves, allow_unused=True, materialize_grads=True)
        return advantages, list(grads)

    clean = batch(seed)
    hidden = clean["mask"] == 0
    dirty = {field: value.masked_fill(hidden, junk) if field in ("rewards", *FIELDS) else value.clone() for field, value in clean.items()}
    advantages, grads = found(clean)
    again, dirty_grads = found(dirty)
    assert torch.equal(advantages, again)
    for grad, dirty_grad in zip(grads, dirty_grads, strict=True):
        assert bool(torch.isfinite(dirty_grad).all())
        torch.testing.assert_close(torch.where(hidden, 0.0, grad), torch.where(hidden, 0.0, dirty_grad))


def test_ranks_are_asked_for_their_summaries_once() -> None:
    b = batch(3) | {"group_count": 3}
    shares = [[0, 2, 4], [1, 3, 5, 6, 7]]
    for name, estimator in TOKEN.items():
        parts = [TokenRows(**take(b, share)) for share in shares]
        summaries = torch.cat([estimator.begin(part, OPTIONS).summary.reshape(1, -1) for part in parts])
        asked: list[tuple[int, ...]] = []

        def gather(own: Tensor, /, summaries: Tensor = summaries, asked: list[tuple[int, ...]] = asked) -> Tensor:
            asked.append(tuple(own.shape))
            return summaries

        whole = run(name, b)
        for part, share in zip(parts, shares, strict=True):
            torch.testing.assert_close(estimator(part, OPTIONS, gather).advantages, whole.advantages[share])
        assert asked == [tuple(summaries[:1].shape)] * 2


@pytest.mark.parametrize("name", TOKEN)
def test_masked_batches_empty_responses_and_no_rows_are_survived(name: str) -> None:
    b = batch(1)
    masked = run(name, b | {"mask": torch.zeros_like(b["mask"])})
    assert masked.advantages.eq(0).all()
    for fields in (take(b, []), {field: value[:, :0] if value.dim() == 2 else value for field, value in b.items()}):
        assert run(name, fields).advantages.numel() == 0
    one = torch.zeros_like(b["mask"])
    one[2, 3] = 1
    assert bool(torch.isfinite(run(name, b | {"mask": one}).advantages).all())


def test_a_group_of_one_has_no_baseline_and_a_group_without_a_vote_gets_zero() -> None:
    b = batch(2, rows=3)
    b["mask"][:] = 1
    for name in ("optimal_token_baseline", "tir_optimal_token_baseline"):
        found = run(name, b)
        torch.testing.assert_close(found.advantages, found.returns)
        silent = run(name, b | {"votes": torch.tensor([True, False, True])})
        assert silent.advantages[1].eq(0).all()


def test_an_output_without_a_vote_is_measured_against_those_that_have_one() -> None:
    b = batch(5, rows=6, groups=1)
    b["mask"][:] = 1
    votes = torch.tensor([False, True, True, True, False, True])
    found = run("optimal_token_baseline", b | {"votes": votes})
    heard = run("optimal_token_baseline", take(b, [1, 2, 3, 5]))
    torch.testing.assert_close(found.advantages[votes], heard.advantages)
    baseline = found.returns[1] - found.advantages[1]
    torch.testing.assert_close(found.advantages[0], found.returns[0] - baseline)


@pytest.mark.parametrize(("name", "missing"), [("gae", "values"), ("remax", "baselines"), ("optimal_token_baseline", "old_log_probs")])
def test_a_tensor_that_was_not_supplied_is_named(name: str, missing: str) -> None:
    b = batch(1)
    with pytest.raises(ValueError, match=f"needs {missing}"):
        run(name, b | {missing: None})


def test_a_reward_that_is_not_finite_is_refused_by_row_where_it_trains() -> None:
    b = batch(1)
    b["mask"][4, 2], b["mask"][5, 2] = 1, 0
    b["rewards"][4, 2] = b["rewards"][5, 2] = math.nan
    with pytest.raises(ValueError, match=r"rewards must be finite; rows \[4\]"):
        TokenRows(**b)


def test_a_reward_on_a_tool_token_is_lost() -> None:
    b = batch(1)
    moved = b | {"rewards": torch.where(b["mask"].bool(), b["rewards"], 5.0)}
    for name in TOKEN:
        assert torch.equal(run(name, b).advantages, run(name, moved).advantages), name
