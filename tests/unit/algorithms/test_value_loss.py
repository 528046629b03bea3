"""The critic's loss."""

import math

import pytest
import torch
from torch import Tensor

from asyncrl.algorithms.aggregation import AGGREGATIONS, Denominators
from asyncrl.algorithms.value_loss import value_loss
from asyncrl.metrics import Metrics, merge, scalars


def one(value: float, old: float, target: float, clip: float = 0.5) -> tuple[float, float, float]:
    """Loss, gradient, clip fraction of one token."""
    leaf = torch.tensor([[value]], dtype=torch.float64, requires_grad=True)
    before, returns = (torch.tensor([[number]], dtype=torch.float64) for number in (old, target))
    loss, metrics = value_loss(leaf, before, returns, torch.ones(1, 1), Denominators(1, 1, 1), cliprange_value=clip)
    (grad,) = torch.autograd.grad(loss, leaf)
    return loss.item(), grad.item(), metrics["critic/vf_clipfrac"].value()


@pytest.mark.parametrize(
    ("value", "old", "target", "expected"),
    [
        (1.2, 1.0, 2.0, (0.32, -0.8, 0.0)),  # within the clip
        (1.8, 1.0, 2.0, (0.125, 0.0, 1.0)),  # moved 0.8 towards the target: held back at 1.5, no more pull
        (0.2, 1.0, 2.0, (1.62, -1.8, 0.0)),  # moved away: the plain error is the larger one
        (3.0, 1.0, 1.25, (1.53125, 1.75, 0.0)),
    ],
)
def test_one_token_by_hand(value: float, old: float, target: float, expected: tuple[float, float, float]) -> None:
    assert one(value, old, target) == pytest.approx(expected)


def test_a_wide_clip_leaves_half_the_squared_error() -> None:
    assert one(5.0, 0.0, 1.0, clip=100.0) == pytest.approx((8.0, 4.0, 0.0))


def batch() -> list[Tensor]:
    generator = torch.Generator().manual_seed(8)
    values, old, targets = torch.randn(3, 5, 6, generator=generator, dtype=torch.float64)
    mask = torch.randint(0, 2, (5, 6), generator=generator)
    mask[1] = 0
    return [values, old, targets, mask]


def test_gradients_equal_finite_differences() -> None:
    values, old, targets, mask = batch()
    of = Denominators.of(mask, 6)
    assert torch.autograd.gradcheck(lambda x: value_loss(x, old, targets, mask, of, cliprange_value=0.5)[0], (values.requires_grad_(),))


@pytest.mark.parametrize("mode", AGGREGATIONS)
@pytest.mark.parametrize("junk", [math.nan, math.inf, 1e30])
def test_no_cut_order_padding_or_junk_changes_loss_gradient_or_metric(mode: str, junk: float) -> None:
    fields = batch()
    mask = fields[3]
    of = Denominators.of(mask, 6)

    def run(tensors: list[Tensor], cut: int) -> tuple[float, dict[str, float], Tensor]:
        leaf, total, parts = tensors[0].clone().requires_grad_(), torch.zeros((), dtype=torch.float64), list[Metrics]()
        for at in range(0, len(leaf), cut):
            now, old, returns, chosen = (tensor[at : at + cut] for tensor in (leaf, *tensors[1:]))
            loss, metrics = value_loss(now, old, returns, chosen, of, cliprange_value=0.5, loss_agg_mode=mode)
            total, parts = total + loss, [*parts, metrics]
        return total.item(), scalars(merge(parts)), torch.autograd.grad(total, leaf)[0]

    expected = run(fields, 5)
    order = torch.tensor([3, 0, 2, 1, 4])
    dirty = [torch.where(mask.bool(), each, junk) if each is not mask else mask for each in fields]
    wide = [torch.nn.functional.pad(each[order], (0, 2), value=0 if at == 3 else junk) for at, each in enumerate(dirty)]
    loss, metrics, grad = run(wide, 2)
    assert loss == pytest.approx(expected[0], abs=1e-12)
    assert metrics == pytest.approx(expected[1], abs=1e-12)
    torch.testing.assert_close(grad[:, :-2], expected[2][order])
    assert not bool(grad[:, -2:].any())


def test_a_negative_range_is_refused() -> None:
    with pytest.raises(ValueError, match="cliprange_value"):
        one(0.0, 0.0, 0.0, clip=-1.0)
