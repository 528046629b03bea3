"""Losses that look at the whole mini-batch first: which tokens are chosen, rejected and weighed."""

import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings, strategies as st
from torch import Tensor

from asyncrl.algorithms.losses import POLICY_LOSSES, PolicyRows
from asyncrl.algorithms.losses.bypass_mode import BypassOptions, bypass_mode, prepare_bypass
from asyncrl.algorithms.losses.clip_cov import ClipCovOptions, clip_cov, prepare_clip_cov
from asyncrl.algorithms.losses.covariance import covariances, largest_tokens, quota
from asyncrl.algorithms.losses.kl_cov import KlCovOptions, kl_cov, prepare_kl_cov
from asyncrl.algorithms.losses.vanilla import vanilla
from asyncrl.algorithms.ranks import AllGather, alone, row_seeds, token_draws
from asyncrl.algorithms.rollout_correction import RolloutCorrectionOptions
from asyncrl.metrics import scalars
from tests.unit.algorithms.mini_batch import make, on_ranks

DRAWS = torch.arange(4)[None]


def rows(log_probs: list[float], advantages: list[float], old: list[float] | None = None, mask: list[int] | None = None) -> PolicyRows:
    now, gains = (torch.tensor([values], dtype=torch.float64) for values in (log_probs, advantages))
    before = now.clone() if old is None else torch.tensor([old], dtype=torch.float64)
    return PolicyRows(now, before, gains, torch.tensor([mask or [1] * len(log_probs)]))


def test_covariances_by_hand() -> None:
    found, tokens = covariances(rows([-1.0, -3.0, math.nan], [2.0, 0.0, 9.0], mask=[1, 1, 0]), alone)
    assert found[0, :2].tolist() == [1.0, 1.0]  # means 1 and -2
    assert tokens == 2
    assert [quota(0.0002, count) for count in (0, 1, 9_999, 10_000, 20_000)] == [1, 1, 1, 2, 4]


def test_kl_cov_adds_its_term_where_the_covariance_is_largest() -> None:
    # Means 0 and -1; covariances 2, -1, 0, -1 (advantage times log-prob, both centred).
    batch = rows([1.0, -2.0, -1.0, -2.0], [1.0, 1.0, -1.0, -1.0], old=[0.9, -2.0, -1.0, -2.0])
    options = KlCovOptions(kl_cov_ratio=0.5, ppo_kl_coef=0.1)
    selected = prepare_kl_cov(batch, options, draws=DRAWS, gather=alone).selected
    assert selected is not None
    assert selected.tolist() == [[True, False, False, True]]  # 2, -1, 0, 1
    policy = kl_cov(replace(batch, selected=selected), options)
    assert policy.losses.tolist() == [pytest.approx([-math.exp(0.1) + 0.1 * 0.1, -1.0, 1.0, 1.0])]
    assert scalars(policy.metrics) == pytest.approx({"actor/ppo_kl": 0.025})


def test_clip_cov_drops_tokens_of_the_band_that_the_clip_left_alone() -> None:
    batch = rows([1.0, -2.0, -1.0, -2.0], [1.0, 1.0, -1.0, -1.0], old=[0.9, -2.0, -1.0, -2.0])
    options = ClipCovOptions(clip_cov_ratio=1.0, clip_cov_lb=0.5, clip_cov_ub=1.5)
    selected = prepare_clip_cov(batch, options, draws=DRAWS, gather=alone).selected
    assert selected is not None
    assert selected.tolist() == [[False, False, False, True]]
    policy = clip_cov(replace(batch, selected=selected), options)
    assert policy.losses[0, 3] == 0.0
    assert scalars(policy.metrics)["actor/pg_clipfrac"] == 0.25
    clipped = replace(batch, old_log_probs=batch.log_probs + math.log(2))  # ratio 0.5: clipped where A < 0
    found = prepare_clip_cov(clipped, options, draws=DRAWS, gather=alone).selected
    assert found is not None
    assert found.tolist() == [[False] * 4]


def test_the_quota_of_clip_cov_is_drawn_per_token_out_of_the_rows_key() -> None:
    width, count = 50, 40
    batch = make(1, count, width)
    options = ClipCovOptions(clip_cov_ratio=0.01, clip_cov_lb=-9.0, clip_cov_ub=9.0)
    chosen = []
    for step in (1, 2):
        draws = token_draws(row_seeds(3, (step,), batch.keys), width)
        selected = prepare_clip_cov(batch.rows, options, draws=draws, gather=alone).selected
        assert selected is not None
        assert int(selected.sum()) == quota(0.01, int(batch.rows.response_mask.sum()))
        chosen.append(selected)
    assert not torch.equal(*chosen)


def test_draws_spread_evenly_and_depend_on_seed_and_column_alone() -> None:
    seeds = row_seeds(5, (1, 0), [f"u{number}_0_0" for number in range(100)])
    draws = token_draws(seeds, 100)
    assert len(set(draws.flatten().tolist())) == 10_000
    assert torch.equal(token_draws(seeds[7:9], 30), draws[7:9, :30])
    uniform = draws.double() / 2.0**64 + 0.5
    assert float(uniform.mean()) == pytest.approx(0.5, abs=0.01)
    assert float(uniform.var()) == pytest.approx(1 / 12, abs=0.005)
    spots: list[tuple[int, tuple[int, ...]]] = [(1, (1,)), (1, (2,)), (2, (1,)), (1, (1, 0))]
    assert len({int(row_seeds(seed, place, ["u_0_0"])) for seed, place in spots}) == 4
    # SplitMix64 from the state 0, as https://prng.di.unimi.it/splitmix64.c gives it.
    assert [value % 2**64 for value in token_draws(torch.tensor([0]), 2)[0].tolist()] == [0xE220A8397B1DCDAF, 0x6E789E6AA1B965F4]


@settings(max_examples=15, deadline=None)
@given(st.lists(st.tuples(st.integers(-3, 3), st.integers(0, 2)), min_size=1, max_size=12), st.integers(1, 12), st.integers(1, 3))
def test_the_largest_tokens_are_those_of_a_sort_however_many_ranks_there_are(pairs: list[tuple[int, int]], count: int, ranks: int) -> None:
    scores = torch.tensor([[pair[0] / 2 for pair in pairs]], dtype=torch.float64)
    draws = torch.arange(len(pairs))[None] + 100 * torch.tensor([[pair[1] for pair in pairs]])
    eligible = draws % 5 != 0
    order = sorted((place for place in range(len(pairs)) if eligible[0, place]), key=lambda p: (-float(scores[0, p]), int(draws[0, p])))
    expected = [place in order[:count] for place in range(len(pairs))]
    cuts = [range(rank, len(pairs), ranks) for rank in range(ranks)]

    def work(rank: int, gather: AllGather) -> Tensor:
        mine = list(cuts[rank])
        return largest_tokens(scores[:, mine], draws[:, mine], eligible[:, mine], count, gather)

    found: list[object] = [None] * len(pairs)
    for cut, mask in zip(cuts, on_ranks(ranks, work), strict=True):
        for place, value in zip(cut, mask[0].tolist(), strict=True):
            found[place] = value
    assert found == expected


def bypassed(batch: PolicyRows, correction: RolloutCorrectionOptions) -> tuple[PolicyRows, dict[str, float]]:
    found = prepare_bypass(batch, BypassOptions(correction), draws=DRAWS, gather=alone)
    return replace(batch, response_mask=found.response_mask, rollout_is_weights=found.rollout_is_weights), scalars(found.metrics)


def test_bypass_rejects_before_it_clips_and_counts_what_is_left() -> None:
    # Ratios 1.1 and 3: the engine's probability is a third of the policy's at the second token.
    batch = rows([-1.0, -1.0], [1.0, 1.0], old=[-1.0 - math.log(1.1), -1.0 - math.log(3)])
    options = RolloutCorrectionOptions(rollout_is="token", rollout_rs="token_k1", rollout_rs_threshold="0.5_2.0")
    ready, found = bypassed(batch, options)
    assert ready.response_mask.tolist() == [[1, 0]]
    assert found["actor/rollout_corr/rollout_rs_masked_fraction"] == 0.5
    policy = bypass_mode(ready, BypassOptions(options))
    expected = vanilla(replace(batch, response_mask=ready.response_mask), BypassOptions(options).clip)
    assert torch.equal(policy.losses, expected.losses), "the ratio to the engine is the importance weight: none is multiplied"
    assert policy.losses.tolist() == [pytest.approx([-1.1, 0.0])]


def test_bypass_reinforce_applies_its_weights() -> None:
    batch = rows([-1.0, -2.0], [1.0, -1.0], old=[-1.0 - math.log(1.5), -2.0 - math.log(3)])
    options = BypassOptions(RolloutCorrectionOptions(rollout_is="token", rollout_is_threshold=2.0, loss_type="reinforce"))
    policy = bypass_mode(batch, options)
    assert policy.losses.tolist() == [pytest.approx([1.5, -2 * 2.0])]
    found = scalars(policy.metrics)
    assert found["actor/rollout_corr/rollout_is_mean"] == pytest.approx(1.75)
    assert found["actor/ppo_kl"] == pytest.approx(-math.log(4.5) / 2)
    assert not POLICY_LOSSES["bypass_mode"].needs_preparation(options)


def test_bypass_normalises_its_weights_over_all_ranks() -> None:
    correction = RolloutCorrectionOptions(
        rollout_is="token", rollout_is_threshold=9.0, rollout_is_batch_normalize=True, loss_type="reinforce"
    )
    shares = [rows([-1.0, -1.0], [1.0, 1.0], old=[-1.0, -1.0]), rows([-1.0, -1.0], [1.0, 1.0], old=[-1.0 - math.log(4)] * 2)]

    def work(rank: int, gather: AllGather) -> list[list[float]]:
        found = prepare_bypass(shares[rank], BypassOptions(correction), draws=DRAWS, gather=gather)
        assert found.rollout_is_weights is not None
        return found.rollout_is_weights.tolist()

    assert on_ranks(2, work) == [[pytest.approx([0.4, 0.4])], [pytest.approx([1.6, 1.6])]]
