"""A mini-batch for tests of losses: made, cut over ranks and micro-batches, and put through a loss as training does it."""

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, fields, replace
from functools import partial
from typing import Any, TypeVar

import torch
from torch import Tensor

from asyncrl.algorithms.aggregation import Denominators
from asyncrl.algorithms.losses import POLICY_LOSSES, PolicyRows, Prepared, loss_options
from asyncrl.algorithms.objective import ObjectiveConfig, policy_objective
from asyncrl.algorithms.ranks import AllGather, row_seeds, token_draws
from asyncrl.algorithms.rollout_correction import RolloutCorrectionOptions
from asyncrl.metrics import Metrics, merge

Result = TypeVar("Result")

CORRECTIONS = {
    "ppo_clip": RolloutCorrectionOptions(rollout_rs="seq_mean_k1", rollout_rs_threshold="0.7_1.4"),
    "reinforce": RolloutCorrectionOptions(
        rollout_is="token",
        rollout_is_threshold="0.4_2.5",
        rollout_is_batch_normalize=True,
        rollout_rs="token_k3,seq_max_k2",
        rollout_rs_threshold="0.6,1.5",
        loss_type="reinforce",
    ),
    "sequence": RolloutCorrectionOptions(rollout_is="sequence", loss_type="reinforce"),
}
SETTINGS = {
    "clip_ratio_low": 0.2,
    "clip_ratio_high": 0.28,
    "clip_ratio_c": 1.5,
    "clip_cov_ratio": 0.2,
    "clip_cov_lb": 0.05,
    "kl_cov_ratio": 0.2,
    "dro_beta": 0.3,
    "delta": 1.6,
    "rollout_correction": CORRECTIONS["ppo_clip"],
}
VARIANTS: dict[str, tuple[str, Any]] = {
    **{name: (name, loss_options(name, SETTINGS)) for name in POLICY_LOSSES},
    "grpo sequence": ("grpo", loss_options("grpo", SETTINGS | {"importance_sampling_level": "sequence"})),
    "bypass reinforce": ("bypass_mode", loss_options("bypass_mode", SETTINGS | {"rollout_correction": CORRECTIONS["reinforce"]})),
    "bypass sequence": ("bypass_mode", loss_options("bypass_mode", SETTINGS | {"rollout_correction": CORRECTIONS["sequence"]})),
}
"""Every loss under every name, and the forms of those that have several."""
LINEAR = ("dppo_tv", "dppo_kl", "gpg", "cispo", "vespo", "bypass reinforce", "bypass sequence")
"""The gradient is that of a weight times a log-prob; the weight, which depends on the log-prob, has none."""


@dataclass(frozen=True)
class Batch:
    """Rows with their keys."""

    rows: PolicyRows
    entropy: Tensor
    reference: Tensor
    keys: list[str]

    def take(self, places: Sequence[int]) -> "Batch":
        """Some of the rows, in the order given."""
        return self._each(lambda tensor: tensor[list(places)], [self.keys[place] for place in places])

    def filled(self, junk: float, wider: int = 0) -> "Batch":
        """``junk`` under the mask, and in more columns on the right."""
        mask = self.rows.response_mask

        def fill(tensor: Tensor) -> Tensor:
            if tensor is mask:
                return torch.nn.functional.pad(mask, (0, wider))
            return torch.nn.functional.pad(torch.where(mask.bool(), tensor, junk), (0, wider), value=junk)

        return self._each(fill, self.keys)

    def _each(self, change: Callable[[Tensor], Tensor], keys: list[str]) -> "Batch":
        given: dict[str, Any] = {field.name: getattr(self.rows, field.name) for field in fields(PolicyRows)}
        rows = replace(self.rows, **{name: change(value) for name, value in given.items() if value is not None})
        return Batch(rows, change(self.entropy), change(self.reference), keys)


def make(seed: int = 3, count: int = 6, width: int = 7, *, weights: bool = False, dtype: torch.dtype = torch.float64) -> Batch:
    """Rows with one advantage each, masks with inner zeros, one row without a trainable token where there are three."""
    generator = torch.Generator().manual_seed(seed)
    noise = torch.randn(4, count, width, generator=generator, dtype=torch.float64)
    old = -torch.rand(count, width, generator=generator, dtype=torch.float64) - 0.05
    mask = torch.randint(0, 2, (count, width), generator=generator)
    mask[:, :1] = 1
    if count > 2:
        mask[2] = 0
    log_probs = (old + 0.4 * noise[0]).clamp(max=-0.01)
    advantages = noise[1, :, :1].expand(count, width)
    importance = noise[2].exp().to(dtype) if weights else None
    rows = PolicyRows(log_probs.to(dtype), old.to(dtype), advantages.to(dtype), mask, importance)
    return Batch(rows, noise[3].abs().to(dtype), (old + 0.3 * noise[2]).to(dtype), [f"u{number}_0_0" for number in range(count)])


def on_ranks(count: int, work: Callable[[int, AllGather], Result]) -> list[Result]:
    """``work(rank, gather)`` on that many threads at once, whose ``gather`` joins them."""
    barrier, parts = threading.Barrier(count, timeout=20), [torch.empty(0)] * count

    def gather(rank: int, values: Tensor) -> Tensor:
        parts[rank] = values
        barrier.wait()
        joined = torch.cat(parts)
        barrier.wait()
        return joined

    def one(rank: int) -> Result:
        try:
            return work(rank, partial(gather, rank))
        except BaseException:
            barrier.abort()  # the others would wait for this one
            raise

    with ThreadPoolExecutor(count) as pool:
        calls = [pool.submit(one, rank) for rank in range(count)]
    errors = [call.exception() for call in calls]
    if any(errors):
        raise next((each for each in errors if not isinstance(each, threading.BrokenBarrierError) and each), errors[0])  # type: ignore[misc]
    return [call.result() for call in calls]


@dataclass(frozen=True)
class Outcome:
    """Of a whole mini-batch."""

    loss: float
    grads: dict[str, Tensor]
    """Of the log-probs, by row key."""
    metrics: Metrics


def run(variant: str, batch: Batch, ranks: Sequence[Sequence[int]], micro: int, **terms: Any) -> Outcome:
    """Cut the batch over ranks and micro-batches of ``micro`` rows; prepare, count, add the parts up."""
    mode, options = VARIANTS[variant]
    config = ObjectiveConfig(policy_loss=POLICY_LOSSES[mode], options=options, **terms)
    shares = [batch.take(places) for places in ranks]
    prepared: list[Prepared | None] = [None] * len(ranks)
    if config.needs_preparation:
        prepared = list(on_ranks(len(ranks), lambda rank, gather: prepare(shares[rank], config, gather)))
    shares = [ready(share, found) for share, found in zip(shares, prepared, strict=True)]
    counts = [Denominators.of(share.rows.response_mask, 9) for share in shares]
    whole = Denominators(sum(each.tokens for each in counts), sum(each.sequences for each in counts), 9)
    total, grads = 0.0, dict[str, Tensor]()
    parts = [found.metrics for found in prepared if found is not None]
    for share in shares:
        for at in range(0, len(share.keys), micro):
            part = share.take(range(at, min(at + micro, len(share.keys))))
            leaf = part.rows.log_probs.clone().requires_grad_()
            loss, metrics = policy_objective(replace(part.rows, log_probs=leaf), part.entropy, part.reference, config, whole)
            (grad,) = torch.autograd.grad(loss, leaf)
            total, parts = total + loss.item(), [*parts, metrics]
            grads |= dict(zip(part.keys, grad, strict=True))
    return Outcome(total, grads, merge(parts))


def prepare(share: Batch, config: ObjectiveConfig, gather: AllGather) -> Prepared:
    """The first phase of one rank."""
    assert config.policy_loss.prepare is not None
    draws = token_draws(row_seeds(7, (1, 0), share.keys), share.rows.log_probs.shape[1])
    return config.policy_loss.prepare(share.rows, config.options, draws=draws, gather=gather)


def ready(share: Batch, found: Prepared | None) -> Batch:
    """The rows with what the first phase found."""
    if found is None:
        return share
    rows = replace(share.rows, response_mask=found.response_mask, rollout_is_weights=found.rollout_is_weights, selected=found.selected)
    return replace(share, rows=rows)
