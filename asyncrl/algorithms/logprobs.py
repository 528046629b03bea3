"""Log-probs, entropy and the sum of squared probabilities of the tempered distribution ``softmax(logits / temperature)``.

``logits`` [T, V] in any float dtype, ``tokens`` [T] int64. Results are [T] in float32, or float64 for float64 logits. The
rows are worked on in chunks and the gradient is written by hand, so that neither direction keeps a second [T, V] tensor
in float32; backward makes one [T, V] gradient in the dtype of the logits.

``log_probs_from_hidden`` makes no [T, V] tensor at all: it takes what the output head takes. In full precision it is torch's
chunked ``linear_cross_entropy``. That one returns its losses in the dtype of its input, and a log-prob rounded to bfloat16 is
no use in a ratio, so half precision goes through checkpointed chunks of the functions here.
"""

from collections.abc import Iterator
from typing import Any, cast

import torch
from torch import Tensor
from torch.nn import LinearCrossEntropyOptions
from torch.nn.functional import linear, linear_cross_entropy
from torch.utils.checkpoint import checkpoint

CHUNK_ELEMENTS = 1 << 22
"""Elements of the logits that are widened to float32 at a time: 16 MiB."""
HEAD_CHUNK_ELEMENTS = 1 << 26
"""Elements of the logits that the head makes at a time: 128 MiB in bfloat16."""


def log_probs_from_logits(logits: Tensor, tokens: Tensor, temperature: float) -> Tensor:
    """Log-prob of each token: [T]. Raises ValueError for a temperature that is not positive."""
    _check(temperature)
    return cast(Tensor, _TokenLogProbs.apply(logits, tokens, temperature))  # type: ignore[no-untyped-call]


def log_probs_from_hidden(hidden: Tensor, head: Tensor, tokens: Tensor, temperature: float) -> Tensor:
    """Log-prob of each token from the hidden states before the output head: [T], as ``log_probs_from_logits(hidden @ head.T)``.

    ``hidden``: [T, H], ``head``: [V, H], of one dtype. It costs the head's product once more in backward. The gradient of a
    half-precision head adds up over chunks in its own dtype. Raises ValueError for a temperature that is not positive.
    """
    _check(temperature)
    if hidden.dtype in (torch.float32, torch.float64):
        options = LinearCrossEntropyOptions()
        return -linear_cross_entropy(hidden / temperature, head, tokens, reduction="none", options=options)
    step = max(1, HEAD_CHUNK_ELEMENTS // max(1, len(head)))
    starts = range(0, max(1, len(hidden)), step)
    pieces = [checkpoint(_piece, hidden[at : at + step], head, tokens[at : at + step], temperature, use_reentrant=False) for at in starts]
    return torch.cat(pieces)


def _piece(hidden: Tensor, head: Tensor, tokens: Tensor, temperature: float) -> Tensor:
    return log_probs_from_logits(linear(hidden, head), tokens, temperature)


def entropy_from_logits(logits: Tensor, temperature: float) -> Tensor:
    """Entropy in nats of each row's distribution: [T]. Raises ValueError for a temperature that is not positive."""
    _check(temperature)
    return cast(Tensor, _Entropy.apply(logits, temperature))  # type: ignore[no-untyped-call]


@torch.no_grad()
def sum_pi_squared_from_logits(logits: Tensor, temperature: float) -> Tensor:
    """Sum over the vocabulary of the squared probability: [T], without gradient."""
    _check(temperature)
    squares = [torch.softmax(scaled, -1).square().sum(-1) for _, scaled in _chunks(logits, temperature)]
    return torch.cat(squares)


def _check(temperature: float) -> None:
    if not temperature > 0:
        raise ValueError(f"temperature must be > 0, got {temperature}; greedy sampling has no distribution to train")


def _chunks(logits: Tensor, temperature: float) -> Iterator[tuple[slice, Tensor]]:
    """Rows of the logits, widened and divided by the temperature, with their place."""
    width = torch.float64 if logits.dtype == torch.float64 else torch.float32
    step = max(1, CHUNK_ELEMENTS // max(1, logits.shape[-1]))
    for start in range(0, max(1, len(logits)), step):
        rows = slice(start, start + step)
        yield rows, logits[rows].to(width) / temperature


class _TokenLogProbs(torch.autograd.Function):
    """d log p(token) / d logits = (one_hot(token) - p) / temperature."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor, tokens: Tensor, temperature: float) -> Tensor:
        normalisers, chosen = [], []
        for rows, scaled in _chunks(logits, temperature):
            normalisers.append(torch.logsumexp(scaled, -1))
            chosen.append(scaled.gather(-1, tokens[rows].unsqueeze(-1)).squeeze(-1))
        normaliser = torch.cat(normalisers)
        ctx.save_for_backward(logits, tokens, normaliser)
        ctx.temperature = temperature
        return torch.cat(chosen) - normaliser

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        logits, tokens, normaliser = ctx.saved_tensors
        out = torch.empty_like(logits)
        for rows, scaled in _chunks(logits, ctx.temperature):
            slope = (grad[rows] / ctx.temperature).unsqueeze(-1)
            wide = torch.exp(scaled - normaliser[rows].unsqueeze(-1)) * -slope
            out[rows] = wide.scatter_add_(-1, tokens[rows].unsqueeze(-1), slope).to(logits.dtype)
        return out, None, None


class _Entropy(torch.autograd.Function):
    """d H / d logits = (-p log p - p H) / temperature; a token of probability 0 has the gradient 0."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor, temperature: float) -> Tensor:
        pieces = [torch.special.entr(torch.softmax(scaled, -1)).sum(-1) for _, scaled in _chunks(logits, temperature)]
        entropy = torch.cat(pieces)
        ctx.save_for_backward(logits, entropy)
        ctx.temperature = temperature
        return entropy

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        logits, entropy = ctx.saved_tensors
        out = torch.empty_like(logits)
        for rows, scaled in _chunks(logits, ctx.temperature):
            p = torch.softmax(scaled, -1)
            slope = (grad[rows] / ctx.temperature).unsqueeze(-1)
            out[rows] = ((torch.special.entr(p) - p * entropy[rows].unsqueeze(-1)) * slope).to(logits.dtype)
        return out, None
