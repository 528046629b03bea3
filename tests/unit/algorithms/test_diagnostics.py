"""Zero spread, and the difference between rollout and actor."""

import math

import numpy as np
import pytest
import torch

from asyncrl.algorithms.diagnostics import CORRELATION, PREFIX, probability_difference
from asyncrl.algorithms.dynamic_sampling import zero_spread, zero_spread_groups
from asyncrl.metrics import merge, scalars


def example() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(5)
    rollout = -torch.rand(6, 8, generator=generator)
    actor = rollout + torch.randn(6, 8, generator=generator) * 0.05
    mask = torch.randint(0, 2, (6, 8), generator=generator)
    return rollout.masked_fill(mask == 0, math.nan), actor.masked_fill(mask == 0, math.inf), mask


def test_the_merged_parts_give_numpys_figures() -> None:
    rollout, actor, mask = example()
    p, q = (np.exp(tensor.double().numpy()[mask.numpy() == 1]) for tensor in (rollout, actor))
    parts = [probability_difference(*(tensor[rows] for tensor in (rollout, actor, mask))) for rows in ([0], [1, 2, 3], [4, 5])]
    assert scalars(merge(parts)) == pytest.approx(
        {
            f"{PREFIX}_valid": 1.0,
            f"{PREFIX}_max": np.abs(p - q).max(),
            f"{PREFIX}_mean": np.abs(p - q).mean(),
            f"{PREFIX}_std": np.abs(p - q).std(ddof=1),
            CORRELATION: np.corrcoef(p, q)[0, 1],
        }
    )


def test_a_part_without_tokens_does_not_disturb_the_others() -> None:
    rollout, actor, mask = example()
    empty = probability_difference(rollout, actor, torch.zeros_like(mask))
    assert scalars(empty) == {f"{PREFIX}_valid": 0.0}
    full = probability_difference(rollout, actor, mask)
    assert scalars(merge([empty, full])) == scalars(full)


def test_figures_that_do_not_exist_are_not_numbers() -> None:
    one = scalars(probability_difference(torch.tensor([[-1.0]]), torch.tensor([[-1.5]]), torch.ones(1, 1)))
    assert sorted(name for name, value in one.items() if math.isnan(value)) == [CORRELATION, f"{PREFIX}_std"]


def test_equal_but_for_rounding_is_no_spread() -> None:
    assert zero_spread([1 / 3] * 7)
    assert zero_spread(torch.tensor([1 / 3] * 7))
    assert zero_spread([0.1 + 0.2, 0.3])
    assert zero_spread([])
    assert not zero_spread(torch.tensor([1e6, 1e6 + 1]))
    assert not zero_spread([0.0, 1e-300])
    assert zero_spread_groups(torch.tensor([1.0, 0.5, 1.0, 0.4]), torch.tensor([3, 1, 3, 1])).tolist() == [True, False, True, False]
