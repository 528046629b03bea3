"""Statistics of prompt groups: rows that carry one group number, adjacent or not, in any order."""

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class Grouping:
    """``G`` groups of ``N`` rows."""

    index: Tensor
    """[N] int64: the group of each row, 0..G-1."""
    counts: Tensor
    """[G] int64: rows of each group."""

    @classmethod
    def of(cls, groups: Tensor) -> "Grouping":
        """From group numbers [N], any integers."""
        _, index, counts = torch.unique(groups, return_inverse=True, return_counts=True)
        return cls(index, counts)

    @property
    def alone(self) -> Tensor:
        """[G] bool: groups of one row."""
        return self.counts == 1

    def total(self, values: Tensor) -> Tensor:
        """Sum of each group: [N] -> [G]."""
        return torch.zeros(len(self.counts), dtype=values.dtype, device=values.device).index_add_(0, self.index, values)

    def mean(self, values: Tensor) -> Tensor:
        """Mean of each group: [N] -> [G]."""
        return self.total(values) / self.counts

    def centred(self, values: Tensor, weights: Tensor | None = None) -> Tensor:
        """``value - mean`` within the group: [N] -> [N] float64. With ``weights`` [N] the mean is a weighted one.

        A group of one has the mean 0 and keeps its value. A group without spread gets exactly 0. Computed in float64,
        where equal float32 values have an exact mean.
        """
        wide = values.double()
        mean = self.mean(wide)
        if weights is not None:
            total = self.total(weights.double())
            mean = torch.where(total > 0, self.total(wide * weights) / total.clamp(min=1), mean)
        centred = wide - torch.where(self.alone, 0.0, mean)[self.index]
        return torch.where((self.zero_spread(values) & ~self.alone)[self.index], 0.0, centred)

    def deviation(self, values: Tensor) -> Tensor:
        """Sample deviation (n - 1) of each group: [N] -> [G] float64; 1 for a group of one."""
        variance = self.total(self.centred(values).square()) / (self.counts - 1).clamp(min=1)
        return torch.where(self.alone, 1.0, variance.sqrt())

    def largest(self, values: Tensor) -> Tensor:
        """Maximum of each group: [N] -> [G]."""
        return self._extreme(values, "amax")

    def smallest(self, values: Tensor) -> Tensor:
        """Minimum of each group: [N] -> [G]."""
        return self._extreme(values, "amin")

    def _extreme(self, values: Tensor, reduce: str) -> Tensor:
        start = torch.zeros(len(self.counts), dtype=values.dtype, device=values.device)
        return start.scatter_reduce_(0, self.index, values, reduce, include_self=False)

    def zero_spread(self, values: Tensor) -> Tensor:
        """Whether all values of a group are one number but for rounding: [N] -> [G] bool.

        ``max - min <= 4 * eps * max(abs)`` with the eps of the values' dtype. A float32 standard deviation is no test:
        seven times 1/3 has one of 3e-8.
        """
        spread = self.largest(values) - self.smallest(values)
        return spread <= 4 * torch.finfo(values.dtype).eps * self.largest(values.abs())
