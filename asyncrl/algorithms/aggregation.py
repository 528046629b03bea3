"""How token losses become one number, normalised by the whole mini-batch over all data-parallel ranks.

Every part (a micro-batch on a rank) divides its own sum by the denominators of the whole mini-batch; the parts' results
add up to the loss of the mini-batch, however it was cut. FSDP averages gradients over ranks, so the caller multiplies by
the data-parallel size.
"""

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

from asyncrl.algorithms.masked import masked_count, masked_sum, ones


@dataclass(frozen=True, slots=True)
class Denominators:
    """What the sums of a mini-batch are divided by, over all ranks and micro-batches."""

    tokens: float
    """T: ones in the response masks, after rejection."""
    sequences: float
    """B: rows with at least one such token."""
    scale: float
    """``loss_scale_factor``; null in the configuration means ``data.max_response_length``."""

    @classmethod
    def of(cls, response_mask: Tensor, scale: float) -> "Denominators":
        """The denominators of a mini-batch of which ``response_mask`` [N, R] is the whole."""
        lengths = ones(response_mask, -1)
        return cls(float(lengths.sum()), float((lengths > 0).sum()), scale)


def _divided(total: Tensor, denominator: float) -> Tensor:
    # A mini-batch without a trainable token has the sum 0 and the count 0: its loss is 0, with a zero gradient.
    return total / denominator if denominator else total


def _token_sum(losses: Tensor, mask: Tensor, of: Denominators) -> Tensor:
    return masked_sum(losses, mask)


def _token_mean(losses: Tensor, mask: Tensor, of: Denominators) -> Tensor:
    return _divided(masked_sum(losses, mask), of.tokens)


def _seq_mean_token_sum(losses: Tensor, mask: Tensor, of: Denominators) -> Tensor:
    return _divided(masked_sum(losses, mask), of.sequences)


def _seq_mean_token_sum_norm(losses: Tensor, mask: Tensor, of: Denominators) -> Tensor:
    return _divided(_seq_mean_token_sum(losses, mask, of), of.scale)


def _seq_mean_token_mean(losses: Tensor, mask: Tensor, of: Denominators) -> Tensor:
    row_means = masked_sum(losses, mask, -1) / masked_count(losses, mask, -1).clamp(min=1)
    return _divided(row_means.sum(), of.sequences)


AGGREGATIONS: dict[str, Callable[[Tensor, Tensor, Denominators], Tensor]] = {
    "token-mean": _token_mean,
    "token-sum": _token_sum,
    "seq-mean-token-sum": _seq_mean_token_sum,
    "seq-mean-token-sum-norm": _seq_mean_token_sum_norm,
    "seq-mean-token-mean": _seq_mean_token_mean,
}
"""The values of ``loss_agg_mode``."""


def aggregate(losses: Tensor, mask: Tensor, mode: str, denominators: Denominators) -> Tensor:
    """This part's share of the mini-batch's loss: a scalar.

    ``losses``, ``mask``: [N, R]. Raises ValueError for an unknown mode.

    >>> import torch
    >>> mask = torch.tensor([[1, 0, 0], [1, 1, 1]])
    >>> aggregate(torch.tensor([[4.0, 9.0, 9.0], [1.0, 1.0, 1.0]]), mask, "token-mean", Denominators.of(mask, 3))
    tensor(1.7500)
    """
    if mode not in AGGREGATIONS:
        raise ValueError(f"unknown loss_agg_mode {mode!r}; known: {', '.join(AGGREGATIONS)}")
    if losses.shape != mask.shape:
        raise ValueError(f"losses {tuple(losses.shape)} and mask {tuple(mask.shape)} differ in shape")
    return AGGREGATIONS[mode](losses, mask, denominators)
