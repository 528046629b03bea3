"""How the rows of a rank are cut into micro-batches, and how the rows of one are laid out for the model.

``n`` rows of a micro-batch, ``S`` the longest prompt and response together, ``R`` the longest response, ``T`` response
tokens of all its rows.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from asyncrl.errors import ConfigError
from asyncrl.tensors.jagged import Jagged


@dataclass(frozen=True, kw_only=True, slots=True)
class MicroBatching:
    """The size of a micro-batch, in rows or in tokens; with neither all rows make one."""

    rows: int | None = None
    max_tokens: int | None = None
    """Most tokens of a micro-batch, padding included."""
    packed: bool = False
    """Lay rows one after another instead of one below another."""

    def __post_init__(self) -> None:
        for name, size in (("rows", self.rows), ("max_tokens", self.max_tokens)):
            if size is not None and size < 1:
                raise ConfigError(f"micro_batch.{name}", size, "must be at least 1")
        if self.rows is not None and self.max_tokens is not None:
            raise ConfigError("", (self.rows, self.max_tokens), "give a micro-batch a size in rows or in tokens, not both")

    def cut(self, lengths: Sequence[int]) -> list[list[int]]:
        """Indices of the rows of each micro-batch, ascending within it.

        lengths: tokens of prompt and response of each row. Raises ConfigError when one row is over the token budget.

        >>> MicroBatching(rows=2).cut([5, 5, 5])
        [[0, 1], [2]]
        >>> MicroBatching(max_tokens=8, packed=True).cut([5, 4, 3, 4])
        [[0, 2], [1, 3]]
        """
        if self.max_tokens is not None:
            return self._by_tokens(lengths, self.max_tokens)
        size = self.rows or max(1, len(lengths))
        return [list(range(first, min(first + size, len(lengths)))) for first in range(0, len(lengths), size)]

    def _by_tokens(self, lengths: Sequence[int], budget: int) -> list[list[int]]:
        """First fit, longest row first; the order makes the first row of a bin its longest."""
        longest = max(lengths, default=0)
        if longest > budget:
            raise ConfigError("micro_batch.max_tokens", budget, f"must hold the longest row, of {longest} tokens")
        bins: list[list[int]] = []
        loads: list[int] = []
        for row in sorted(range(len(lengths)), key=lambda index: (-lengths[index], index)):
            costs = [lengths[row] if self.packed else lengths[rows[0]] for rows in bins]
            place = next((at for at, cost in enumerate(costs) if loads[at] + cost <= budget), len(bins))
            if place == len(bins):
                bins.append([])
                loads.append(0)
                costs.append(lengths[row])
            bins[place].append(row)
            loads[place] += costs[place]
        return sorted(sorted(rows) for rows in bins)


@dataclass(frozen=True, slots=True)
class ModelInput:
    """Prompts and responses of n rows as the model takes them, and where their response tokens are predicted.

    The last response token of a row is left out: nothing is predicted after it.
    """

    input_ids: Tensor
    """[n, S - 1], padded at the end with 0; packed [1, all tokens but the last ones]."""
    position_ids: Tensor | None
    """Packed: as ``input_ids``, from 0 in each row, which is how the model tells rows apart. Padded: None; no mask either,
    since a token never sees what comes after it."""
    predicting: Tensor
    """int64 [T], places in the flattened ``input_ids`` whose logits predict a response token: each one before its token."""
    targets: Tensor
    """int64 [T], the response tokens."""
    places: Tensor
    """int64 [T], places of the response tokens in a flattened [n, R]."""
    shape: tuple[int, int]
    """(n, R)."""

    def padded(self, values: Tensor) -> Tensor:
        """[T] values of response tokens as [n, R], 0 elsewhere; differentiable."""
        rows, width = self.shape
        return values.new_zeros(rows * width).index_copy(0, self.places, values).view(rows, width)


def model_input(prompts: Jagged, responses: Jagged, *, packed: bool) -> ModelInput:
    """Lay out n >= 1 rows. Raises ValueError for an empty prompt: nothing would predict its first response token."""
    if prompts.rows and int(prompts.lengths.min()) == 0:
        raise ValueError("a row without a prompt token cannot be evaluated")
    lengths = prompts.lengths + (responses.lengths - 1).clamp(min=0)
    device = lengths.device
    ends = lengths.cumsum(0)
    longest, total = int(lengths.max()), int(ends[-1])
    starts = ends - lengths if packed else torch.arange(len(lengths), device=device) * longest
    ids = torch.zeros(total if packed else len(lengths) * longest, dtype=torch.int64, device=device)
    ids[_spread(prompts, starts)] = prompts.values.long()
    answers = _spread(responses, starts + prompts.lengths)
    targets = responses.values.long()
    last = torch.zeros(len(targets), dtype=torch.bool, device=device)
    last[responses.offsets[1:][responses.lengths > 0] - 1] = True
    ids[answers[~last]] = targets[~last]
    position_ids = None
    if packed:
        position_ids = (torch.arange(total, device=device) - torch.repeat_interleave(starts, lengths))[None]
    width = responses.longest
    places = _spread(responses, torch.arange(len(lengths), device=device) * width)
    return ModelInput(ids.view(1 if packed else len(lengths), -1), position_ids, answers - 1, targets, places, (len(lengths), width))


def _spread(rows: Jagged, starts: Tensor) -> Tensor:
    """Where the elements of ``rows`` go when row i starts at ``starts[i]``: int64, one place an element."""
    shift = torch.repeat_interleave(starts - rows.offsets[:-1], rows.lengths)
    return shift + torch.arange(len(rows.values), device=shift.device)


def idle_input(device: torch.device) -> ModelInput:
    """One prompt token and one response token: what a rank runs when others have more micro-batches than it has."""
    ids = Jagged(torch.zeros(1, dtype=torch.int64, device=device), torch.tensor([0, 1], device=device))
    return model_input(ids, ids, packed=False)
