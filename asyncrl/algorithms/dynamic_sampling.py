"""Which prompt groups are worth training on: DAPO, https://arxiv.org/abs/2503.14476."""

from collections.abc import Sequence

import torch
from torch import Tensor

from asyncrl.algorithms.advantages.grouping import Grouping


def zero_spread(values: Tensor | Sequence[float]) -> bool:
    """Whether the values of one group are all the same number but for rounding, so that no advantage can differ from 0.

    ``max - min <= 4 * eps * max(abs)``, with the eps of the tensor's dtype; plain numbers are float64. True for no value.

    >>> zero_spread([0.7] * 8), zero_spread([1.0, 0.0])
    (True, False)
    """
    tensor = values if isinstance(values, Tensor) else torch.tensor(values, dtype=torch.float64)
    if not tensor.numel():
        return True
    return bool(Grouping.of(torch.zeros(tensor.numel(), dtype=torch.int64)).zero_spread(tensor.flatten())[0])


def zero_spread_groups(values: Tensor, groups: Tensor) -> Tensor:
    """The same for many groups at once: ``values`` [N], ``groups`` [N] int64 -> [N] bool, whether the row's group has none."""
    group = Grouping.of(groups)
    return group.zero_spread(values)[group.index]


def worth_training(values: Tensor | Sequence[float]) -> bool:
    """The filter's rule for one group: its answers are judged differently, so that some advantage is not 0.

    ``values``: what the filter looks at, one number a session, by default the score. False for fewer than two.
    """
    return not zero_spread(values)
