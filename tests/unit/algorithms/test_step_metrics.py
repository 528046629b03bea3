"""What a step says about its rows, by hand."""

import math
from typing import Any

import pytest
import torch
from hypothesis import given, settings, strategies as st
from torch import Tensor

from asyncrl.algorithms.metric_names import combine_updates, reduce_by_name
from asyncrl.algorithms.step_metrics import (
    length_metrics,
    reward_metrics,
    throughput_metrics,
    timing_metrics,
    token_metrics,
    turn_metrics,
    value_metrics,
    variance_proxies,
    variance_with_gradient,
    version_metrics,
)
from asyncrl.metrics import Metrics, merge, scalars


def test_scores_leave_out_empty_answers_and_lengths_do_not() -> None:
    scores = reward_metrics([1.0, 0.0, 5.0], [0.5, 0.0, 4.0], [3, 2, 0])
    assert (scores["critic/score/mean"], scores["critic/score/max"], scores["critic/rewards/mean"]) == (0.5, 1.0, 0.25)
    lengths = length_metrics([4, 2, 2], [8, 2, 0], prompt_limit=4, response_limit=8)
    assert lengths["response_length/mean"] == pytest.approx(10 / 3)
    assert lengths["response_length_non_aborted/mean"] == 5.0
    assert lengths["response_length/clip_ratio"] == pytest.approx(1 / 3)
    assert lengths["response_length_non_aborted/clip_ratio"] == 0.5
    assert lengths["prompt_length/clip_ratio"] == pytest.approx(1 / 3)
    assert lengths["response/aborted_ratio"] == pytest.approx(1 / 3)
    assert turn_metrics([1, 3])["training/num_turns/mean"] == turn_metrics([1, 3])["num_turns/mean"] == 2.0


def test_a_limit_that_nobody_reached_clips_nobody() -> None:
    assert length_metrics([1], [5], 8, 16)["response_length/clip_ratio"] == 0.0


def test_answers_that_are_all_empty_have_no_score_but_a_length() -> None:
    scores, lengths = reward_metrics([1.0], [1.0], [0]), length_metrics([3], [0], 8, 8)
    assert all(math.isnan(value) for value in scores.values())
    assert lengths["response_length/mean"] == 0.0
    assert math.isnan(lengths["response_length_non_aborted/mean"])
    assert lengths["response/aborted_ratio"] == 1.0


def test_versions_of_a_step() -> None:
    metrics = version_metrics(oldest=[2, 5], newest=[4, 5], step=6)
    assert metrics["training/off_policy/trajectory_spans/max"] == 3
    assert metrics["training/off_policy/trajectory_staleness/max"] == 1
    assert metrics["training/off_policy/trajectory_staleness_worst/max"] == 3
    assert metrics["training/off_policy/trajectory_staleness_worst/min"] == 0
    assert version_metrics([], [], 6) == {}


def test_times_per_token_and_throughput() -> None:
    timing = timing_metrics({"gen": 2.0, "adv": 1.0, "reward": 4.0, "step": 10.0}, tokens=500, response_tokens=100)
    assert timing["timing_per_token_ms/gen"] == 20.0
    assert timing["timing_per_token_ms/adv"] == 2.0
    assert "timing_per_token_ms/reward" not in timing
    assert timing["timing_s/reward"] == 4.0
    assert throughput_metrics(500, 10.0, 2)["perf/throughput"] == 25.0
    assert math.isnan(throughput_metrics(500, 0.0, 2)["perf/throughput"])
    assert "timing_per_token_ms/gen" not in timing_metrics({"gen": 2.0}, 0, 0)


MASK = torch.tensor([[1, 1, 0], [0, 0, 0], [1, 0, 0]])


def test_token_metrics_by_hand() -> None:
    values = torch.tensor([[1.0, 3.0, math.nan], [math.inf, 0.0, 0.0], [-1.0, 1e30, 0.0]])
    assert scalars(token_metrics("critic/advantages", values, MASK)) == {
        "critic/advantages/mean": 1.0,
        "critic/advantages/max": 3.0,
        "critic/advantages/min": -1.0,
    }
    for nothing in (token_metrics("x", values, torch.zeros_like(MASK)), token_metrics("x", values[:0], MASK[:0])):
        assert all(math.isnan(value) for value in scalars(nothing).values())
        assert scalars(merge([nothing, token_metrics("x", values, MASK)]))["x/max"] == 3.0


def test_a_critic_that_foresees_everything_explains_everything_and_one_that_knows_the_mean_explains_nothing() -> None:
    returns = torch.tensor([[1.0, 3.0, 9.0], [9.0] * 3, [5.0, 9.0, 9.0]])

    def explained(values: Tensor) -> float:
        return scalars(value_metrics(values, returns, MASK))["critic/vf_explained_var"]

    assert explained(returns.masked_fill(MASK == 0, math.nan)) == 1.0
    assert explained(torch.full_like(returns, 3.0)) == pytest.approx(0.0, abs=1e-5)
    assert explained(-returns) == pytest.approx(-3.0, abs=1e-4)


def tokens(seed: int) -> dict[str, Tensor]:
    random = torch.Generator().manual_seed(seed)
    fields = {name: torch.randn(8, 5, generator=random) for name in ("advantages", "returns", "values")}
    mask = (torch.rand(8, 5, generator=random) < 0.7).long()
    draws = torch.rand(3, 8, 5, generator=random)
    return fields | {"mask": mask, "old_log_probs": -draws[0], "sum_pi_squared": draws[1], "weights": draws[2] + 0.5}


def report(t: dict[str, Tensor]) -> Metrics:
    return merge(
        [
            token_metrics("critic/advantages", t["advantages"], t["mask"]),
            value_metrics(t["values"], t["returns"], t["mask"]),
            variance_proxies(t["advantages"], t["old_log_probs"], t["sum_pi_squared"], t["mask"], t["weights"]),
        ]
    )


@settings(max_examples=25, deadline=None)
@given(
    seed=st.integers(0, 10_000), order=st.permutations(range(8)), cut=st.integers(1, 7), junk=st.sampled_from([math.nan, math.inf, 1e30])
)
def test_metrics_do_not_depend_on_order_cut_padding_and_what_lies_under_the_mask(
    seed: int, order: list[int], cut: int, junk: float
) -> None:
    clean = tokens(seed)
    dirty: dict[str, Any] = {
        name: torch.nn.functional.pad(
            value if name == "mask" else value.masked_fill(clean["mask"] == 0, junk), (0, 2), value=0 if name == "mask" else junk
        )
        for name, value in clean.items()
    }
    parts = [{name: value[rows] for name, value in dirty.items()} for rows in (order[:cut], order[cut:])]
    expected, found = scalars(report(clean)), scalars(merge(report(part) for part in parts))
    assert found == {name: pytest.approx(value, rel=1e-4, abs=1e-5, nan_ok=True) for name, value in expected.items()}


@pytest.mark.parametrize("extra", [1, 7])
def test_rows_that_nobody_trains_on_are_in_no_token_metric(extra: int) -> None:
    clean = tokens(4)
    padded = {name: torch.nn.functional.pad(value, (0, 0, 0, extra)) for name, value in clean.items()}
    for part in (clean, padded):
        part["found"] = torch.tensor(
            list(scalars(token_metrics("a", part["advantages"], part["mask"])).values())
            + list(scalars(value_metrics(part["values"], part["returns"], part["mask"])).values())
        )
    torch.testing.assert_close(padded["found"], clean["found"])


def test_the_noise_of_the_gradient_is_its_power_less_its_signal_over_the_other_rows() -> None:
    """One token a row: p = 0.5 and sum(pi^2) = 0.5 make W = 0.5; advantages 2 and 4 a power of (4 + 16) / 2 * 0.5 = 5."""
    half = torch.full((2, 1), 0.5)
    proxies = variance_proxies(torch.tensor([[2.0], [4.0]]), half.log(), half, torch.ones(2, 1))
    found = scalars(variance_with_gradient(proxies, gradient_norm=2.0))
    assert {name.removeprefix("variance_proxy/"): value for name, value in found.items()} == pytest.approx(
        {"expected_a_squared": 10, "expected_w": 0.5, "proxy2_total_power": 5, "proxy1_signal_strength": 4, "proxy3_pure_noise": 1}
    )
    assert scalars(variance_with_gradient(proxies, 9.0))["variance_proxy/proxy3_pure_noise"] == 0.0
    assert scalars(variance_with_gradient(proxies, None))["variance_proxy/proxy1_signal_strength"] == 0.0


def test_a_token_of_weight_zero_has_no_power() -> None:
    half = torch.full((1, 2), 0.5)
    weights = torch.tensor([[0.0, 2.0]])
    found = scalars(variance_proxies(torch.full((1, 2), 3.0), half.log(), half, torch.ones(1, 2), weights))
    assert found["variance_proxy/expected_w"] == pytest.approx(0.5 * 4)
    assert found["variance_proxy/proxy2_total_power"] == pytest.approx(9 * 0.5 * 1)


def test_numbers_combine_by_the_words_of_their_names() -> None:
    assert reduce_by_name("perf/max_memory", [1.0, 3.0]) == 3.0
    assert reduce_by_name("critic/score/min", [1.0, 3.0]) == 1.0
    assert reduce_by_name("timing_s/gen", [1.0, 3.0]) == 2.0, "the letters of min in another word are no minimum"
    assert reduce_by_name("global_seqlen/minmax_diff", [1.0, 3.0]) == 3.0


def test_local_updates_become_one_step() -> None:
    first = {
        "actor/pg_loss": 1.0,
        "timing_s/gen": 2.0,
        "actor/lr": 0.1,
        "x/max": 5.0,
        "x/min": 1.0,
        "x/minmax_diff": 4.0,
        "perf/total_num_tokens": 7.0,
    }
    second = {
        "actor/pg_loss": 4.0,
        "timing_s/gen": 3.0,
        "actor/lr": 0.2,
        "x/max": 4.0,
        "x/min": -1.0,
        "x/minmax_diff": 5.0,
        "critic/new": 6.0,
    }
    assert combine_updates([first, second], [1, 2]) == {
        "actor/pg_loss": 3.0,
        "timing_s/gen": 5.0,
        "actor/lr": 0.2,
        "x/max": 5.0,
        "x/min": -1.0,
        "x/minmax_diff": 6.0,
        "perf/total_num_tokens": 7.0,
        "critic/new": 6.0,
    }
    assert combine_updates([{"a": 1.0}, {"a": 3.0}], [0, 0]) == {"a": 2.0}
    assert combine_updates([], []) == {}
