"""The batch of ``asyncrl bench algorithms`` and what is done with it; all samples in milliseconds."""

import contextlib
import time
from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from asyncrl.algorithms.advantages import AdvantageOptions, OutcomeRows
from asyncrl.algorithms.advantages.grpo import GRPO
from asyncrl.algorithms.aggregation import Denominators
from asyncrl.algorithms.losses import PolicyRows
from asyncrl.algorithms.masked import ones, over_tokens
from asyncrl.algorithms.objective import ObjectiveConfig, policy_objective
from asyncrl.bench.algorithms import AlgorithmsWork

MILLISECONDS = 1e3


@contextlib.contextmanager
def one_thread() -> Iterator[None]:
    """Let torch use one thread in the block."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


class TensorWork:
    """``N`` rows by ``R`` tokens, right-padded, a reward of 0 or 1 on each row's last token."""

    def __init__(self, work: AlgorithmsWork) -> None:
        self.work = work
        draw = torch.Generator().manual_seed(0)
        shape = (work.rows, work.tokens)
        lengths = torch.randint(1, work.tokens + 1, (work.rows, 1), generator=draw)
        self.mask = torch.arange(work.tokens) < lengths
        self.groups = torch.arange(work.rows) // work.group
        self.rewards = torch.zeros(shape)
        self.rewards.scatter_(1, lengths - 1, torch.randint(0, 2, (work.rows, 1), generator=draw).float())
        self.old = torch.rand(shape, generator=draw).neg_()
        self.log_probs = (self.old + 0.1 * torch.randn(shape, generator=draw)).requires_grad_()
        self.advantages = self._advantages()
        self.source = torch.zeros(work.copied_bytes // 4)
        self.target = torch.ones_like(self.source)

    async def grpo(self) -> float:
        """Token rewards to advantages on the tokens."""
        return _timed(self._advantages)

    async def grpo_floor(self) -> float:
        """Rewards and mask read, advantages written."""
        return self._floor(self.rewards, self.mask, self.advantages)

    async def vanilla_loss(self) -> float:
        """Loss, metrics and gradient of every micro-batch."""
        return _timed(self._loss)

    async def vanilla_loss_floor(self) -> float:
        """Log-probs of two policies, advantages and mask read, the gradient written."""
        return self._floor(self.log_probs, self.old, self.advantages, self.mask, self.log_probs)

    def _advantages(self) -> Tensor:
        rows = OutcomeRows(self.rewards.sum(-1), self.groups, ones(self.mask, -1))
        return over_tokens(GRPO(rows, AdvantageOptions()), self.mask)

    def _loss(self) -> None:
        whole = Denominators.of(self.mask, self.work.tokens)
        self.log_probs.grad = torch.empty_like(self.log_probs)
        for at in range(0, self.work.rows, self.work.micro_rows):
            part = slice(at, at + self.work.micro_rows)
            leaf = self.log_probs.detach()[part].requires_grad_()
            rows = PolicyRows(leaf, self.old[part], self.advantages[part], self.mask[part])
            loss, _ = policy_objective(rows, None, None, ObjectiveConfig(), whole)
            (self.log_probs.grad[part],) = torch.autograd.grad(loss, leaf)

    def _floor(self, *moved: Tensor) -> float:
        copy = _timed(lambda: self.target.copy_(self.source))
        return copy * sum(tensor.nbytes for tensor in moved) / (2 * self.source.nbytes)


def _timed(step: Callable[[], object]) -> float:
    start = time.perf_counter()
    step()
    return (time.perf_counter() - start) * MILLISECONDS
