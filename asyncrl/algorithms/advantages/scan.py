"""Recurrences from the last column of a row to its first, over all rows at once.

A row is cut into about sqrt(R) blocks of about sqrt(R) columns: first each block by itself, then what comes in from the block
to its right. That takes 2 sqrt(R) steps instead of R, and three passes over the numbers.
"""

import math

import torch
from torch import Tensor
from torch.nn.functional import pad


def reverse_scan(values: Tensor, decay: Tensor) -> Tensor:
    """``y[:, t] = values[:, t] + decay[:, t] * y[:, t + 1]``, nothing after the last column: [N, R], [N, R] -> [N, R].

    Both must be finite.

    >>> reverse_scan(torch.tensor([[1.0, 2.0, 4.0]]), torch.full((1, 3), 0.5))
    tensor([[3., 4., 4.]])
    """
    rows, width = values.shape
    if not values.numel():
        return values
    size = math.isqrt(width)
    blocks = -(-width // size)
    # Columns become rows, so that each step reads and writes memory in one piece.
    cut = (pad(part, (0, blocks * size - width)).t().contiguous().view(blocks, size, rows) for part in (values, decay))
    own, reach = _within_blocks(*cut)
    incoming = torch.zeros_like(own[0, 0])
    carried = [incoming]
    for block in reversed(range(1, blocks)):
        incoming = own[block, 0] + reach[block, 0] * incoming
        carried.append(incoming)
    whole = own + reach * torch.stack(carried[::-1]).unsqueeze(1)
    return whole.view(blocks * size, rows).t()[:, :width].contiguous()


def _within_blocks(values: Tensor, decay: Tensor) -> tuple[Tensor, Tensor]:
    """The recurrence in each block, and how much of what comes in from the right reaches each column; all [B, S, N]."""
    found, reaching = values[:, -1], decay[:, -1]
    columns, reaches = [found], [reaching]
    for value, factor in zip(values.unbind(1)[-2::-1], decay.unbind(1)[-2::-1], strict=True):
        found, reaching = value + factor * found, factor * reaching
        columns.append(found)
        reaches.append(reaching)
    return torch.stack(columns[::-1], 1), torch.stack(reaches[::-1], 1)


def later(values: Tensor, columns: int = 1) -> Tensor:
    """What stands ``columns`` further right; 0 beyond the end."""
    return pad(values[..., columns:], (0, min(columns, values.shape[-1])))


def carried_back(values: Tensor, mask: Tensor) -> Tensor:
    """At each column the value of the first trainable column from there on; 0 where none follows. ``values`` cleaned."""
    return reverse_scan(values, (~mask.bool()).to(values.dtype))


def return_to_go(rewards: Tensor, mask: Tensor, gamma: float) -> Tensor:
    """The discounted sum of rewards from each column on; a masked column neither discounts nor adds. ``rewards`` cleaned."""
    return reverse_scan(rewards, discounts(rewards, mask, gamma))


def discounts(like: Tensor, mask: Tensor, gamma: float) -> Tensor:
    """``gamma`` at trainable columns, 1 at masked ones, in the dtype of ``like``: [N, R]."""
    return torch.ones_like(like).masked_fill(mask.bool(), gamma)
