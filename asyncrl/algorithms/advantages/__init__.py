"""Advantage estimators, one a file, by the names of ``algorithm.adv_estimator``.

An outcome estimator takes one score a row and gives one advantage a row; ``votes`` decides which rows it sees.
"""

from typing import Protocol

from torch import Tensor

from asyncrl.algorithms.advantages.grpo import grpo


class OutcomeAdvantages(Protocol):
    """``(scores [N], groups [N]) -> [N]`` with the options that the configuration may set."""

    def __call__(self, scores: Tensor, groups: Tensor, *, normalise_by_std: bool = True, epsilon: float = 1e-6) -> Tensor: ...


ESTIMATORS: dict[str, OutcomeAdvantages] = {
    "grpo": grpo,
    "grpo_vectorized": grpo,
}
