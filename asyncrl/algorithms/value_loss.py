"""The critic's loss: squared error to the returns, with PPO's clip around the values of the rollout, https://arxiv.org/abs/1707.06347."""

import torch
from torch import Tensor

from asyncrl.algorithms.aggregation import Denominators, aggregate
from asyncrl.algorithms.masked import masked
from asyncrl.algorithms.readings import mean, read
from asyncrl.metrics import Metrics, Sum


def value_loss(
    values: Tensor,
    old_values: Tensor,
    returns: Tensor,
    response_mask: Tensor,
    denominators: Denominators,
    *,
    cliprange_value: float,
    loss_agg_mode: str = "token-mean",
) -> tuple[Tensor, Metrics]:
    """``1/2 max((v - R)^2, (clip(v, v_old - c, v_old + c) - R)^2)``, aggregated over the whole mini-batch: this part's share.

    ``values`` (with gradient), ``old_values`` (of the rollout), ``returns``: [N, R]. Returns the share, a scalar, and
    ``critic/vf_loss`` (shares add up), ``critic/vf_clipfrac`` (the clipped error is the larger one), ``critic/vpred_mean``. Raises
    ValueError for a negative ``cliprange_value``.

    >>> one = torch.ones(1, 1)
    >>> value_loss(3 * one, one, 2.5 * one, one, Denominators(1, 1, 1), cliprange_value=0.5)[0]
    tensor(0.5000)
    """
    if not cliprange_value >= 0:
        raise ValueError(f"cliprange_value must be >= 0, got {cliprange_value}")
    now, before, target = (masked(each, response_mask) for each in (values, old_values, returns))
    plain = (now - target).square()
    clipped = (now.clamp(before - cliprange_value, before + cliprange_value) - target).square()
    loss = aggregate(0.5 * torch.maximum(plain, clipped), response_mask, loss_agg_mode, denominators)
    readings = {"critic/vf_clipfrac": mean(clipped > plain, response_mask), "critic/vpred_mean": mean(now.detach(), response_mask)}
    return loss, read(readings) | {"critic/vf_loss": Sum(loss.item())}
