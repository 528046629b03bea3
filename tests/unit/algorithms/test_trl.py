"""TRL's names, and the filters that verl does not have."""

import math

import pytest
import torch
from hypothesis import given, settings, strategies as st

from asyncrl.algorithms.aggregation import AGGREGATIONS
from asyncrl.algorithms.losses import POLICY_LOSSES
from asyncrl.algorithms.rollout_correction.options import WeightBounds
from asyncrl.algorithms.trl import LOSS_TYPES, correction_bounds, high_entropy_tokens, off_policy_keep
from tests.unit.algorithms.mini_batch import on_ranks


def test_every_loss_type_is_a_loss_and_an_aggregation_of_ours() -> None:
    for loss, aggregation in LOSS_TYPES.values():
        kind = POLICY_LOSSES[loss]
        assert aggregation in AGGREGATIONS
        assert kind.loss_agg_mode in (None, aggregation)


def test_rows_are_dropped_when_they_are_bad_and_the_policy_drifted_from_them() -> None:
    sampled = torch.tensor([[-1.0, -1.0, math.nan]] * 3)
    now = torch.tensor([[-1.5, -1.1, math.inf], [-1.5, -1.1, 0.0], [-1.0, -1.1, 0.0]])
    advantages = torch.tensor([[1.0], [-1.0], [-1.0]]).expand(3, 3)
    mask = torch.tensor([[1, 1, 0]] * 3)
    assert off_policy_keep(advantages, now, sampled, mask, 0.1).tolist() == [True, False, True]
    assert off_policy_keep(advantages, now, sampled, mask, 0.31).tolist() == [True, True, True]


def test_tokens_of_high_entropy_are_above_a_quantile_of_all_trainable_ones() -> None:
    entropy = torch.tensor([[1.0, 2.0, math.nan], [3.0, 4.0, 9.0]])
    mask = torch.tensor([[1, 1, 0], [1, 1, 0]])
    assert high_entropy_tokens(entropy, mask, 0.5).tolist() == [[False, False, False], [True, True, False]]
    assert torch.equal(high_entropy_tokens(entropy, mask, 1.0), mask.bool())
    assert not bool(high_entropy_tokens(entropy, torch.zeros_like(mask), 0.5).any())
    with pytest.raises(ValueError, match="top_entropy_quantile"):
        high_entropy_tokens(entropy, mask, 0.0)


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 999), st.floats(0.05, 1.0), st.integers(1, 3))
def test_the_quantile_is_that_of_torch_however_many_ranks_there_are(seed: int, quantile: float, ranks: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    entropy, mask = torch.rand(6, 4, generator=generator), torch.randint(0, 2, (6, 4), generator=generator)
    mask[0, 0] = 1
    expected = (entropy >= torch.quantile(entropy[mask == 1], 1 - quantile)) & (mask == 1)
    found = on_ranks(ranks, lambda rank, gather: high_entropy_tokens(entropy[rank::ranks], mask[rank::ranks], quantile, gather=gather))
    for rank, part in enumerate(found):
        # One float32 step apart at the threshold is the same quantile.
        differs = part != expected[rank::ranks]
        near = (entropy[rank::ranks] - torch.quantile(entropy[mask == 1], 1 - quantile)).abs() < 1e-6
        assert bool((~differs | near).all())


def test_importance_sampling_modes_are_a_level_and_bounds() -> None:
    assert correction_bounds("token_truncate", None, 3.0) == ("token", WeightBounds(0.0, 3.0))
    assert correction_bounds("sequence_mask", 0.5, None) == ("sequence", WeightBounds(0.5, math.inf, zero_outside=True))
    with pytest.raises(ValueError, match="token_mask"):
        correction_bounds("token", None, 2.0)
    with pytest.raises(ValueError, match="in order"):
        correction_bounds("token_mask", 3.0, 2.0)
