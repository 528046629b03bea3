"""Draws tokens from logits. ``B`` rows, ``V`` vocabulary.

Each draw takes one uniform number made from (seed, uid, session, position) alone, so an answer does not depend on what else
is in the batch, on the number of engines, or on where the answer was interrupted.
"""

from collections.abc import Sequence
from hashlib import blake2b

import torch
from torch import Tensor

from asyncrl.trajectory import GenerateRequest, SamplingParams

_UNIT = 2.0**-53


def uniform(request: GenerateRequest, position: int) -> float:
    """The number in [0, 1) that draws the token at ``position`` of the session, counted over all its draws.

    The 53 leading bits of a hash: with all 64 the nearest float could be 1.
    """
    name = f"{request.seed}/{request.uid}/{request.session}/{position}".encode()
    return (int.from_bytes(blake2b(name, digest_size=8).digest()) >> 11) * _UNIT


class Sampler:
    """The sampling parameters of ``B`` rows as tensors, and the draw."""

    def __init__(self, params: Sequence[SamplingParams], device: torch.device) -> None:
        def column(values: list[float]) -> Tensor:
            return torch.tensor(values, dtype=torch.float64, device=device)[:, None]

        greedy = [each.temperature == 0 for each in params]
        self._any_greedy, self._all_greedy = any(greedy), all(greedy)
        self._greedy = torch.tensor(greedy, device=device)
        # Greedy rows keep their logits: their log-probs are untempered.
        self._temperature = column([each.temperature or 1.0 for each in params])
        self._filtered = any(each.top_p < 1 or each.top_k > 0 for each in params if each.temperature)
        self._top_p = column([each.top_p if each.temperature else 1.0 for each in params])
        self._top_k = column([float(each.top_k) if each.top_k > 0 and each.temperature else torch.inf for each in params])

    def draw(self, logits: Tensor, uniforms: Sequence[float]) -> tuple[list[int], list[float]]:
        """One token for each row and its log-probability under the distribution it was drawn from.

        logits: [B, V]. uniforms: B numbers in [0, 1). Temperature, then top-k, then top-p; the token is the first whose
        cumulative probability passes the uniform number, in float64, never one of probability zero.
        """
        scaled = logits.double() / self._temperature
        if self._filtered:
            scaled = self._filter(scaled)
        log_probs = scaled.log_softmax(-1)
        best = log_probs.argmax(-1)
        tokens = best if self._all_greedy else self._invert(log_probs.exp(), uniforms, best)
        if self._any_greedy:
            tokens = torch.where(self._greedy, best, tokens)
        return tokens.tolist(), log_probs.gather(-1, tokens[:, None])[:, 0].tolist()

    def _filter(self, scaled: Tensor) -> Tensor:
        """Set the logits outside top-k and top-p to -inf. The likeliest token always stays.

        Top-p keeps a token when the likelier ones that top-k left have less than top_p together.
        """
        ordered, order = scaled.sort(dim=-1, descending=True, stable=True)
        rank = torch.arange(scaled.shape[-1], device=scaled.device)
        ordered = ordered.masked_fill(rank >= self._top_k, -torch.inf)
        probs = ordered.softmax(-1)
        dropped = (probs.cumsum(-1) - probs >= self._top_p) & (rank > 0) & (self._top_p < 1)
        return torch.full_like(scaled, -torch.inf).scatter(-1, order, ordered.masked_fill(dropped, -torch.inf))

    def _invert(self, probs: Tensor, uniforms: Sequence[float], best: Tensor) -> Tensor:
        cumulative = probs.cumsum(-1)
        wanted = torch.tensor(uniforms, dtype=torch.float64, device=probs.device)[:, None] * cumulative[:, -1:]
        tokens = torch.searchsorted(cumulative, wanted, right=True)
        # A parallel scan need not be monotone to the last bit, so an accelerator could land beside the right token.
        tokens = tokens.clamp(max=probs.shape[-1] - 1)
        return torch.where(probs.gather(-1, tokens) > 0, tokens, best[:, None])[:, 0]
