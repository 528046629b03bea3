"""Faults that other trainers had in the mathematics of a step, each with the right value.

What is held here is what no test beside it holds yet: fast forms against loops, votes of sessions with several outputs, branches that
share tokens, rows that fill up a batch, and groups without spread.
"""

import math
import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from asyncrl.algorithms.advantages import ESTIMATORS, AdvantageOptions, OutcomeEstimator, OutcomeRows, multi_output
from asyncrl.algorithms.aggregation import AGGREGATIONS, Denominators
from asyncrl.algorithms.diagnostics import probability_difference
from asyncrl.algorithms.kl import KL_TYPES
from asyncrl.algorithms.kl_in_reward import penalised_rewards, row_kl
from asyncrl.algorithms.losses import PolicyRows
from asyncrl.algorithms.masked import over_tokens
from asyncrl.algorithms.objective import ObjectiveConfig, policy_objective
from asyncrl.algorithms.rollout_correction import RolloutCorrectionOptions, rollout_correction
from asyncrl.algorithms.rollout_correction.options import RS_CRITERIA
from asyncrl.algorithms.step_metrics import throughput_metrics, token_metrics, value_metrics
from asyncrl.algorithms.value_loss import value_loss
from asyncrl.metrics import Metrics, merge, scalars
from tests.unit.algorithms.mini_batch import VARIANTS, make, run
from tests.unit.algorithms.test_outcome_advantages import loop

PLAIN = AdvantageOptions()
OUTCOME = {name: estimator for name, estimator in ESTIMATORS.items() if isinstance(estimator, OutcomeEstimator)}
JUNK = (math.nan, math.inf, -math.inf, 1e30)


def numbers(values: list[int]) -> Tensor:
    return torch.tensor(values, dtype=torch.int64)


@pytest.mark.parametrize("name", OUTCOME)
def test_two_hundred_ragged_groupings_in_float32_and_any_row_order_equal_the_loop(name: str) -> None:
    draw = random.Random(name)
    for _ in range(200):
        sizes = [draw.randint(2, 6) for _ in range(draw.randint(1, 4))]
        places = [(7 * group - 3, draw.randint(-20, 20) / 8, draw.randint(1, 9)) for group, size in enumerate(sizes) for _ in range(size)]
        draw.shuffle(places)
        groups, scores, lengths = (list(column) for column in zip(*places, strict=True))
        found = OUTCOME[name](OutcomeRows(torch.tensor(scores, dtype=torch.float32), numbers(groups), numbers(lengths)), PLAIN)
        assert found.tolist() == pytest.approx(loop(name, scores, groups, lengths), rel=1e-5, abs=1e-5)


@pytest.mark.parametrize("name", ["grpo", "grpo_vectorized"])
def test_a_tiny_spread_beside_a_large_mean_keeps_its_size_under_every_name(name: str) -> None:
    """E[x^2] - E[x]^2 would leave nothing of the first group in float32."""
    rows = OutcomeRows(torch.tensor([1000, 1000, 1000, 1000.001, 0.5, 0.5001, 0.5, 0.5001]), numbers([0] * 4 + [1] * 4), numbers([1] * 8))
    expected = [-0.499, -0.499, -0.499, 1.497, -0.851, 0.851, -0.851, 0.851]
    assert OUTCOME[name](rows, PLAIN).tolist() == pytest.approx(expected, abs=2e-3)


# ------------------------------------------------------------------------ sessions with several outputs


def outcome(scores: list[float], sessions: list[int], indices: list[int], lengths: list[int], groups: list[int]) -> OutcomeRows:
    wide = torch.tensor(scores, dtype=torch.float64)
    return OutcomeRows(wide, numbers(groups), numbers(lengths), numbers(sessions), numbers(indices))


@pytest.mark.parametrize("name", OUTCOME)
def test_a_session_votes_once_however_many_outputs_it_left(name: str) -> None:
    """Earlier outputs change nothing: here they have no token, so that whitening and length weights do not see them either."""
    scores, lengths, groups, sessions = [1.0, 0.0, 0.5, 0.25, 2.0], [3, 2, 4, 1, 5], [0, 0, 0, 1, 1], [0, 1, 2, 0, 1]
    alone = multi_output(OUTCOME[name])(outcome(scores, sessions, [4] * 5, lengths, groups), PLAIN)
    earlier = [(9.0, 0, index, 0, 0) for index in range(3)] + [(-7.0, 1, 1, 0, 1)]
    rows = [*earlier, *zip(scores, sessions, [4] * 5, lengths, groups, strict=True)]
    for order in (range(9), [8, 2, 5, 0, 7, 3, 6, 1, 4]):
        found = multi_output(OUTCOME[name])(outcome(*(list(part) for part in zip(*(rows[at] for at in order), strict=True))), PLAIN)
        by_row = dict(zip(order, found.tolist(), strict=True))
        assert [by_row[at] for at in range(4, 9)] == pytest.approx(alone.tolist())
        assert [by_row[at] for at in range(3)] == pytest.approx([by_row[4]] * 3), "they share what their session got"
        assert by_row[3] == pytest.approx(by_row[8])


def test_the_advantage_of_a_session_lands_on_the_own_trainable_tokens_of_each_of_its_outputs() -> None:
    """Session 0 has outputs of three and five tokens, with other masks; session 1 one output. Scores of last outputs 1 and 0."""
    mask = torch.tensor([[1, 1, 1, 0, 0], [1, 0, 1, 0, 1], [1, 1, 0, 0, 0]])
    lengths = mask.sum(-1).tolist()
    advantages = multi_output(OUTCOME["grpo"])(outcome([0.0, 1.0, 0.0], [0, 0, 1], [0, 1, 0], lengths, [0] * 3), PLAIN)
    expected = mask * torch.tensor([[1.0], [1.0], [-1.0]]) / math.sqrt(2)
    torch.testing.assert_close(over_tokens(advantages, mask), expected.double(), rtol=0, atol=1e-5)


def branches() -> tuple[PolicyRows, PolicyRows]:
    """A prefix of five sampled tokens and tails of two and three: with the prefix trained in one branch, and in both."""
    generator = torch.Generator().manual_seed(2)
    log_probs = -torch.rand(2, 8, generator=generator, dtype=torch.float64)
    log_probs[1, :5] = log_probs[0, :5]
    shared = torch.tensor([[1, 1, 1, 1, 1, 1, 1, 0], [0, 0, 0, 0, 0, 1, 1, 1]])
    once = PolicyRows(log_probs, log_probs - 0.1, torch.full((2, 8), 0.5, dtype=torch.float64), shared)
    return once, replace(once, response_mask=torch.tensor([[1] * 7 + [0], [1] * 8]))


@pytest.mark.parametrize("mode", ["token-mean", "token-sum"])
def test_tokens_that_two_branches_share_are_trained_once_where_the_mask_says_so(mode: str) -> None:
    once, twice = branches()
    assert Denominators.of(once.response_mask, 1).tokens == 10
    assert Denominators.of(twice.response_mask, 1).tokens == 15
    pulls = []
    for rows in (once, twice):
        leaf = rows.log_probs.clone().requires_grad_()
        given = replace(rows, log_probs=leaf)
        loss, _ = policy_objective(given, None, None, ObjectiveConfig(loss_agg_mode=mode), Denominators.of(rows.response_mask, 1))
        (grad,) = torch.autograd.grad(loss, leaf)
        pulls.append(grad.sum(0)[:5] * (Denominators.of(rows.response_mask, 1).tokens if mode == "token-mean" else 1))
    torch.testing.assert_close(2 * pulls[0], pulls[1])


# ------------------------------------------------------------------------ rows that fill up a batch


def plain(of: Callable[..., Metrics]) -> Callable[[dict[str, Tensor]], Metrics]:
    """A report that takes advantages, log-probs, old log-probs and mask."""
    return lambda t: of(t["a"], t["lp"], t["old"], t["mask"])


CORRECTION = RolloutCorrectionOptions(
    rollout_is="sequence",
    rollout_is_threshold="0.5_2.0",
    rollout_is_batch_normalize=True,
    rollout_rs=",".join(RS_CRITERIA),
    rollout_rs_threshold=",".join("0.3_3" if name.endswith("k1") else "0.9" for name in RS_CRITERIA),
)
REPORTS: dict[str, Callable[[dict[str, Tensor]], Metrics]] = {
    "tokens": plain(lambda a, lp, old, mask: token_metrics("critic/advantages", a, mask)),
    "values": plain(lambda a, lp, old, mask: value_metrics(a, lp, mask)),
    "difference": plain(lambda a, lp, old, mask: probability_difference(old, lp, mask)),
    "correction": plain(lambda a, lp, old, mask: rollout_correction(lp, old, mask, CORRECTION).metrics),
    "value loss": plain(lambda a, lp, old, mask: value_loss(lp, old, a, mask, Denominators.of(mask, 9), cliprange_value=0.2)[1]),
}


@pytest.mark.parametrize("extra", [1, 7])
@pytest.mark.parametrize("name", REPORTS)
def test_no_metric_knows_how_many_rows_fill_up_the_batch(name: str, extra: int) -> None:
    generator = torch.Generator().manual_seed(6)
    lp = -torch.rand(4, 5, generator=generator, dtype=torch.float64)
    mask = torch.randint(0, 2, (4, 5), generator=generator)
    mask[:, 0] = 1
    a = torch.randn(4, 5, generator=generator, dtype=torch.float64)
    clean = {"a": a, "lp": lp, "old": lp + 0.3 * a.roll(1, 0), "mask": mask}
    filled = {key: torch.nn.functional.pad(each, (0, 0, 0, extra), value=0 if key == "mask" else math.nan) for key, each in clean.items()}
    expected = scalars(REPORTS[name](clean))
    assert scalars(REPORTS[name](filled)) == pytest.approx(expected, abs=1e-12, nan_ok=True)
    assert expected


@pytest.mark.parametrize("extra", [1, 7])
@pytest.mark.parametrize("variant", VARIANTS)
def test_no_loss_gradient_or_metric_knows_how_many_rows_fill_up_the_batch(variant: str, extra: int) -> None:
    full = make(5, 4 + extra, 5)
    mask = full.rows.response_mask.clone()
    mask[4:] = 0
    filled = replace(full, rows=replace(full.rows, response_mask=mask)).filled(math.nan)
    terms: dict[str, Any] = {"use_kl_loss": True, "entropy_coeff": 0.1, "loss_agg_mode": "seq-mean-token-mean"}
    expected = run(variant, filled.take(range(4)), [[0, 1, 2, 3]], 4, **terms)
    found = run(variant, filled, [[*range(0, 4 + extra, 2)], [*range(1, 4 + extra, 2)]], 2, **terms)
    assert found.loss == pytest.approx(expected.loss, abs=1e-12)
    assert scalars(found.metrics) == pytest.approx(scalars(expected.metrics), abs=1e-12, nan_ok=True)
    for key, grad in found.grads.items():
        torch.testing.assert_close(grad, expected.grads.get(key, torch.zeros_like(grad)))


def test_a_step_of_empty_answers_alone_has_a_throughput() -> None:
    assert throughput_metrics(0, 2.0, 2) == {"perf/total_num_tokens": 0, "perf/time_per_step": 2.0, "perf/throughput": 0.0}


# ------------------------------------------------------------------------ groups without spread, and what lies under the mask


@pytest.mark.parametrize("mode", AGGREGATIONS)
def test_a_group_without_spread_is_pulled_by_its_kl_term_alone_and_stays_in_the_denominators(mode: str) -> None:
    generator = torch.Generator().manual_seed(1)
    log_probs, noise = -torch.rand(2, 4, 3, generator=generator, dtype=torch.float64)
    mask = torch.tensor([[1, 1, 0], [1, 1, 1], [1, 0, 0], [1, 1, 1]])
    same = multi_output(OUTCOME["grpo"])(outcome([0.7] * 4, [0, 1, 2, 3], [0] * 4, mask.sum(-1).tolist(), [0] * 4), PLAIN)
    assert same.tolist() == [0.0] * 4
    of = Denominators.of(mask, 3)
    found: dict[float, Tensor] = {}
    for coefficient in (0.0, 0.1, 0.2):
        leaf = log_probs.clone().requires_grad_()
        config = ObjectiveConfig(use_kl_loss=coefficient > 0, kl_loss_coef=coefficient, kl_loss_type="k2", loss_agg_mode=mode)
        rows = PolicyRows(leaf, log_probs + 0.1 * noise, over_tokens(same, mask), mask)
        loss, _ = policy_objective(rows, None, log_probs - noise, config, of)
        (found[coefficient],) = torch.autograd.grad(loss, leaf)
    assert not bool(found[0.0].any()), "without a KL term such a group moves nothing"
    torch.testing.assert_close(found[0.2], 2 * found[0.1])
    # The gradient of k2 is the difference of the log-probs, divided as the tokens of any other group.
    weight = {"token-mean": 1 / 9, "token-sum": 1.0, "seq-mean-token-sum": 1 / 4, "seq-mean-token-sum-norm": 1 / 12}
    if mode in weight:
        torch.testing.assert_close(found[0.1], torch.where(mask.bool(), 0.1 * weight[mode] * noise, 0.0))


@pytest.mark.parametrize("junk", JUNK)
@pytest.mark.parametrize("kl_type", KL_TYPES)
def test_kl_in_the_reward_does_not_depend_on_cut_order_padding_and_what_lies_under_the_mask(kl_type: str, junk: float) -> None:
    generator = torch.Generator().manual_seed(3)
    scores, old, reference = torch.randn(3, 5, 4, generator=generator, dtype=torch.float64)
    mask = torch.randint(0, 2, (5, 4), generator=generator)
    mask[1] = 0

    def found(parts: list[list[int]], values: list[Tensor]) -> tuple[dict[int, list[float]], dict[str, float]]:
        metrics, by_row = list[Metrics](), dict[int, list[float]]()
        for rows in parts:
            own = [each[rows] for each in values]
            rewards, told = penalised_rewards(own[0], own[1], own[2], own[3], coefficient=0.1, kl_type=kl_type)
            totals, means = row_kl(own[1], own[2], own[3], kl_type)
            metrics.append(told)
            by_row |= dict(zip(rows, torch.cat([rewards[:, :4], totals[:, None], means[:, None]], 1).tolist(), strict=True))
        return by_row, scalars(merge(metrics))

    dirty = [scores, *(torch.where(mask.bool(), each, junk) for each in (old, reference)), mask]
    wide = [torch.nn.functional.pad(each, (0, 2), value=0 if at in (0, 3) else junk) for at, each in enumerate(dirty)]
    expected, told = found([[0, 1, 2, 3, 4]], [scores, old, reference, mask])
    again, retold = found([[4, 1], [0], [3, 2]], wide)
    assert retold == pytest.approx(told, abs=1e-12)
    for row, wanted in expected.items():
        assert again[row] == pytest.approx(wanted, abs=1e-12)
