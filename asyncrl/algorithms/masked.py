"""Sums, means and variances over the ones of a mask.

``values`` and ``mask`` have one shape, usually [N, R]; ``dim=None`` reduces everything, ``dim=-1`` reduces each row.
"""

import torch
from torch import Tensor


def masked(values: Tensor, mask: Tensor) -> Tensor:
    """``values`` where the mask is set, 0 elsewhere; no gradient, NaN or infinity passes from under the mask.

    A product with the mask would not do: 0 * NaN is NaN, in the value and in the gradient.
    """
    return torch.where(mask.bool(), values, torch.zeros((), dtype=values.dtype, device=values.device))


def masked_sum(values: Tensor, mask: Tensor, dim: int | None = None) -> Tensor:
    """Sum over the mask."""
    return masked(values, mask).sum() if dim is None else masked(values, mask).sum(dim)


def masked_count(values: Tensor, mask: Tensor, dim: int | None = None) -> Tensor:
    """Number of ones in the mask, in the dtype of ``values``."""
    return mask.bool().sum(dim).to(values.dtype)


def masked_mean(values: Tensor, mask: Tensor, dim: int | None = None) -> Tensor:
    """Mean over the mask; 0 where the mask has no one."""
    return masked_sum(values, mask, dim) / masked_count(values, mask, dim).clamp(min=1)


def masked_variance(values: Tensor, mask: Tensor, *, unbiased: bool = True) -> Tensor:
    """Variance over the mask, as a scalar; divided by n - 1 when ``unbiased``; 0 when there are too few values."""
    centred = values - masked_mean(values, mask)
    freedom = masked_count(values, mask) - (1 if unbiased else 0)
    return masked_sum(centred * centred, mask) / freedom.clamp(min=1)


def masked_whiten(values: Tensor, mask: Tensor, *, shift_mean: bool = True) -> Tensor:
    """``(x - mean) / sqrt(variance + 1e-8)`` over the mask, sample variance; 0 under the mask.

    ``shift_mean=False`` adds the mean again. With fewer than two values there is no spread to divide by: all zeros.
    """
    if int(mask.bool().sum()) < 2:
        return torch.zeros_like(values)
    mean = masked_mean(values, mask)
    whitened = (values - mean) * torch.rsqrt(masked_variance(values, mask) + 1e-8)
    return masked(whitened if shift_mean else whitened + mean, mask)


def over_tokens(scalars: Tensor, mask: Tensor) -> Tensor:
    """One number a row, ``scalars`` [N], on each of the row's trainable tokens: [N, R], 0 under the mask."""
    return masked(scalars.unsqueeze(-1).expand(mask.shape), mask)
