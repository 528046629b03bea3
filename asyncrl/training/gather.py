"""Rows of numbers from every rank of a group."""

import torch
import torch.distributed as dist
from torch import Tensor


class GroupGather:
    """``algorithms.ranks.AllGather`` over a process group, whose tensors travel by ``device``. On the device thread."""

    def __init__(self, group: dist.ProcessGroup, device: torch.device) -> None:
        self._group, self._device, self._ranks = group, device, group.size()

    def __call__(self, values: Tensor, /) -> Tensor:
        """[n, c] of this rank -> [sum of n, c] of all ranks, in rank order, where ``values`` lie. Collective."""
        if self._ranks == 1:
            return values
        mine = torch.tensor([len(values)], device=self._device)
        counts = mine.new_empty(self._ranks)
        dist.all_gather_single(counts, mine, group=self._group)
        most = int(counts.max())
        padded = torch.zeros(most, values.shape[1], dtype=values.dtype, device=self._device)
        padded[: len(values)] = values.detach()
        everyone = padded.new_empty(self._ranks * most, values.shape[1])
        dist.all_gather_single(everyone, padded, group=self._group)
        parts = everyone.view(self._ranks, most, -1)
        return torch.cat([part[:count] for part, count in zip(parts, counts.tolist(), strict=True)]).to(values.device)
