"""Sums, means and variances over the ones of a mask, in one go or merged from the parts of several ranks.

``values`` and ``mask`` have one shape, usually [N, R]; ``dim=None`` reduces everything, ``dim=-1`` reduces each row.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

WHITEN_EPSILON = 1e-8
"""Added to the variance, inside the root."""


def masked(values: Tensor, mask: Tensor) -> Tensor:
    """``values`` where the mask is set, 0 elsewhere; no gradient, NaN or infinity passes from under the mask.

    A product with the mask would not do: 0 * NaN is NaN, in the value and in the gradient.
    """
    return torch.where(mask.bool(), values, torch.zeros((), dtype=values.dtype, device=values.device))


def ones(mask: Tensor, dim: int | None = None) -> Tensor:
    """Number of ones in the mask, int64."""
    # A sum of bools makes an int64 copy first: ten times as slow on a CPU.
    rows = mask.bool().view(torch.uint8).sum(-1, dtype=torch.int32)
    return rows.sum() if dim is None else rows.long()


def masked_sum(values: Tensor, mask: Tensor, dim: int | None = None) -> Tensor:
    """Sum over the mask."""
    return masked(values, mask).sum() if dim is None else masked(values, mask).sum(dim)


def masked_count(values: Tensor, mask: Tensor, dim: int | None = None) -> Tensor:
    """Number of ones in the mask, in the dtype of ``values``."""
    return ones(mask, dim).to(values.dtype)


def masked_mean(values: Tensor, mask: Tensor, dim: int | None = None) -> Tensor:
    """Mean over the mask; 0 where the mask has no one."""
    return masked_sum(values, mask, dim) / masked_count(values, mask, dim).clamp(min=1)


def masked_variance(values: Tensor, mask: Tensor, *, unbiased: bool = True) -> Tensor:
    """Variance over the mask, as a scalar; divided by n - 1 when ``unbiased``; 0 when there are too few values."""
    centred = values - masked_mean(values, mask)
    freedom = masked_count(values, mask) - (1 if unbiased else 0)
    return masked_sum(centred * centred, mask) / freedom.clamp(min=1)


def moments(values: Tensor, weights: Tensor) -> Tensor:
    """[3] float64: the total weight, the weighted mean and the weighted sum of squared deviations.

    ``weights``: the shape of ``values``, a mask or how often each value counts. A value of weight 0 may be anything.
    """
    used = masked(values, weights).double()
    often = weights.double()
    total = often.sum()
    mean = (used * often).sum() / total.clamp(min=1)
    return torch.stack([total, mean, ((used - mean).square() * often).sum()])


def merged_moments(parts: Tensor) -> Tensor:
    """The moments of all values from those of P parts: [P, 3] -> [3]. Exact, where a sum of squares would cancel."""
    totals, means, deviations = parts.unbind(-1)
    total = totals.sum()
    mean = (totals * means).sum() / total.clamp(min=1)
    return torch.stack([total, mean, (deviations + totals * (means - mean).square()).sum()])


def whitened(values: Tensor, mask: Tensor, over: Tensor, *, shift_mean: bool = True) -> Tensor:
    """``(x - mean) / sqrt(variance + 1e-8)`` under the moments ``over`` [3]: sample variance, 0 where the mask is 0.

    ``shift_mean=False`` adds the mean again. With a total weight below 2 there is no spread to divide by: all zeros.
    """
    total, mean, deviations = over.to(values.device).unbind(-1)
    scale = torch.rsqrt(deviations / (total - 1).clamp(min=1) + WHITEN_EPSILON)
    result = (masked(values, mask).double() - mean) * scale + (0.0 if shift_mean else mean)
    return masked(torch.where(total < 2, 0.0, result), mask).to(values.dtype)


def masked_whiten(values: Tensor, mask: Tensor, *, shift_mean: bool = True) -> Tensor:
    """``whitened`` under the moments of these values alone."""
    return whitened(values, mask, merged_moments(moments(values, mask)[None]), shift_mean=shift_mean)


def first_of_row(values: Tensor, mask: Tensor) -> Tensor:
    """The value at the first one of each row's mask, 0 for a row without: [N, R] -> [N]."""
    if not mask.shape[-1]:
        return values.sum(-1)
    chosen = mask.bool().int().argmax(-1, keepdim=True)
    return masked(values, mask).gather(-1, chosen).squeeze(-1)


def until_end(tokens: Tensor, ends: Sequence[int]) -> Tensor:
    """1 up to the first of the ``ends`` in each row, that one with it, 0 behind it: [N, R] int64 -> [N, R] int64."""
    is_end = torch.isin(tokens, torch.tensor(list(ends), dtype=tokens.dtype, device=tokens.device)).long()
    return (is_end.cumsum(-1) - is_end == 0).long()


def over_tokens(scalars: Tensor, mask: Tensor) -> Tensor:
    """One number a row, ``scalars`` [N], on each of the row's trainable tokens: [N, R], 0 under the mask."""
    return masked(scalars.unsqueeze(-1).expand(mask.shape), mask)
