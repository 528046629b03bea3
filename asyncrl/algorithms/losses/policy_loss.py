"""What a policy loss takes and returns, and what it says about itself.

A loss gives one number per token and leaves the aggregation to ``aggregation.aggregate``, which divides by the counts of
the whole mini-batch over all ranks: the parts of any cut add up to the same value and gradient.
"""

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

import torch
from torch import Tensor

from asyncrl.algorithms.masked import masked, masked_mean, ones
from asyncrl.algorithms.ranks import AllGather
from asyncrl.algorithms.readings import mean, read
from asyncrl.metrics import Metrics

LOG_RATIO_BOUND = 20.0
"""A log ratio is bounded to +- this before it is exponentiated, so that a ratio stays finite in float32."""


def held(values: Tensor, bounded: Tensor) -> Tensor:
    """``bounded``, with the gradient of ``values`` where the two are equal and 0 elsewhere.

    What clamps give, however many of them made ``bounded``, for the backward of one.
    """
    bounded = bounded.detach()
    return torch.where(values.detach() == bounded, values, bounded)


@dataclass(frozen=True, slots=True)
class PolicyLoss:
    """Token losses, not yet aggregated, and what is worth reporting."""

    losses: Tensor
    """[N, R], 0 under the mask."""
    metrics: Metrics


@dataclass(frozen=True, slots=True)
class PolicyRows:
    """The rows of a micro-batch as a policy loss sees them; all tensors [N, R].

    What lies under a 0 of ``response_mask`` may be NaN or infinite: a loss masks what it reads and what it returns, and
    nothing in between can carry it to a value or a gradient.
    """

    log_probs: Tensor
    """Under the weights of now, with gradient."""
    old_log_probs: Tensor
    advantages: Tensor
    response_mask: Tensor
    """After rejection."""
    rollout_is_weights: Tensor | None = None
    """Multiply the losses after any clip; None is 1 everywhere."""
    selected: Tensor | None = None
    """The tokens that the loss's ``prepare`` chose out of the whole mini-batch."""

    def log_ratio(self, bound: float | None = None) -> Tensor:
        """``log_probs - old_log_probs``, 0 under the mask; beyond +- ``bound`` constant, with gradient 0."""
        log_ratio = self.log_probs - self.old_log_probs
        if bound is None:
            return masked(log_ratio, self.response_mask)
        free = masked(log_ratio.detach(), self.response_mask)
        return torch.where(self.response_mask.bool() & (free.abs() <= bound), log_ratio, free.clamp(-bound, bound))

    def row_log_ratio(self) -> Tensor:
        """The mean log ratio of the row, on each of its tokens; its gradient goes to all of them alike."""
        mean_ratio = masked_mean(self.log_ratio(), self.response_mask, -1)
        return masked(mean_ratio.unsqueeze(-1).expand_as(self.log_probs), self.response_mask)

    def clean(self, values: Tensor) -> Tensor:
        """``values``, 0 under the mask."""
        return masked(values, self.response_mask)

    def weighted(self, losses: Tensor, metrics: Metrics) -> PolicyLoss:
        """The token losses times the importance weights, 0 under the mask."""
        if self.rollout_is_weights is not None:
            losses = losses * self.rollout_is_weights
        return PolicyLoss(self.clean(losses), metrics)

    @torch.no_grad()
    def token_means(self, **values: Tensor) -> Metrics:
        """``actor/<name>``: the mean of each over the trainable tokens; nothing where there is none."""
        tokens = ones(self.response_mask)
        return read({f"actor/{name}": mean(value, self.response_mask, tokens) for name, value in values.items()})


Options = TypeVar("Options")
OptionsRead = TypeVar("OptionsRead", contravariant=True)


class PolicyLossFunction(Protocol[OptionsRead]):
    """The signature of every loss, of a user's own as well."""

    def __call__(self, rows: PolicyRows, options: OptionsRead, /) -> PolicyLoss: ...


@dataclass(frozen=True, slots=True)
class Prepared:
    """What a loss must know of the whole mini-batch, for the rows of this rank; the tensors are cut along with the rows."""

    response_mask: Tensor
    """[N, R]; what is rejected here is in no denominator."""
    rollout_is_weights: Tensor | None
    selected: Tensor | None
    metrics: Metrics


class Prepare(Protocol[OptionsRead]):
    """The first phase of a loss that depends on the whole mini-batch.

    ``rows``: all rows of this rank, their log-probs from a pass without gradient under the weights of now. ``draws``
    [N, R]: see ``ranks.token_draws``. ``gather`` joins the ranks, which all must call it.
    """

    def __call__(self, rows: PolicyRows, options: OptionsRead, /, *, draws: Tensor, gather: AllGather) -> Prepared: ...


@dataclass(frozen=True, slots=True)
class PolicyLossKind(Generic[Options]):
    """A policy loss and what it says about itself."""

    function: PolicyLossFunction[Options]
    options: type[Options]
    """A frozen dataclass whose field names are verl's option names."""
    loss_agg_mode: str | None = None
    """The aggregation that belongs to its definition, whatever is configured; None: the configured one."""
    prepare: Prepare[Options] | None = None
    """Present when the loss depends on more than its own rows: its result would else depend on the micro-batch cut."""
    prepares_if: Callable[[Options], bool] = lambda options: True
    """Whether these options need ``prepare``, a pass over the mini-batch before the one with gradient."""

    def needs_preparation(self, options: Options) -> bool:
        """Whether ``prepare`` must run before ``function``."""
        return self.prepare is not None and self.prepares_if(options)


AnyPolicyLossKind = PolicyLossKind[Any]


def as_policy_loss(candidate: object) -> AnyPolicyLossKind:
    """A user's loss: a ``PolicyLossKind``, or a function ``(PolicyRows, options) -> PolicyLoss``.

    A function's options are a dict. Raises TypeError for anything else, also for a function that cannot be called with two
    arguments by place, or a first phase without ``draws`` and ``gather``.
    """
    if not isinstance(candidate, PolicyLossKind):
        if not callable(candidate):
            raise TypeError(f"a policy loss is a function or a PolicyLossKind, not {candidate!r}")
        candidate = PolicyLossKind(candidate, dict)
    _check_call(candidate.function, "(rows, options)")
    if candidate.prepare is not None:
        _check_call(candidate.prepare, "(rows, options, draws=, gather=)", draws=object(), gather=object())
    return candidate


def _check_call(function: Callable[..., object], form: str, **named: object) -> None:
    try:
        inspect.signature(function).bind(object(), object(), **named)
    except (TypeError, ValueError) as error:
        raise TypeError(f"{function!r} cannot be called as {form}: {error}") from None


def check_clip(low: float, high: float) -> None:
    """Raises ValueError for a trust region that makes no sense."""
    if not (low >= 0 and high >= 0):
        raise ValueError(f"clip_ratio_low and clip_ratio_high must be >= 0, got {low} and {high}")


def check_dual_clip(c: float) -> None:
    """Raises ValueError for a dual clip that would cut inside the trust region."""
    if not c > 1:
        raise ValueError(f"clip_ratio_c must be > 1, got {c}")
