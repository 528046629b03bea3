"""What the actor minimises: ``policy loss - entropy_coeff * entropy + kl_loss_coef * KL``, each aggregated in one way."""

from dataclasses import dataclass

import torch
from torch import Tensor

from asyncrl.algorithms.aggregation import AGGREGATIONS, Denominators, aggregate
from asyncrl.algorithms.kl import KL_TYPES, kl_penalty
from asyncrl.algorithms.losses import POLICY_LOSSES
from asyncrl.algorithms.losses.policy_loss import ClipConfig
from asyncrl.algorithms.masked import masked, masked_sum
from asyncrl.metrics import Last, Mean, Metrics, Sum


@dataclass(frozen=True, slots=True)
class ObjectiveConfig:
    """The terms of the objective; the names are those of verl's actor section."""

    clip: ClipConfig
    loss_agg_mode: str
    entropy_coeff: float
    use_kl_loss: bool
    kl_loss_coef: float
    kl_loss_type: str
    loss_mode: str = "vanilla"

    def __post_init__(self) -> None:
        choices = (
            ("loss_agg_mode", self.loss_agg_mode, AGGREGATIONS),
            ("kl_loss_type", self.kl_loss_type, KL_TYPES),
            ("loss_mode", self.loss_mode, POLICY_LOSSES),
        )
        for name, value, known in choices:
            if value not in known:
                raise ValueError(f"unknown {name} {value!r}; known: {', '.join(known)}")


def policy_objective(
    log_probs: Tensor,
    entropy: Tensor | None,
    old_log_probs: Tensor,
    advantages: Tensor,
    response_mask: Tensor,
    ref_log_prob: Tensor | None,
    config: ObjectiveConfig,
    denominators: Denominators,
    *,
    rollout_is_weights: Tensor | None = None,
) -> tuple[Tensor, Metrics]:
    """This part's share of the mini-batch's loss, a scalar, and its metrics.

    All tensors [N, R]. The shares and the ``Sum`` metrics (``actor/pg_loss``, ``actor/kl_loss``, ``actor/entropy_loss``,
    ``actor/loss``) of all micro-batches and ranks add up to the value of the whole mini-batch; means such as
    ``actor/entropy`` carry their weight. An ``entropy`` is reported also when its coefficient is 0, and then gets no
    gradient. Raises ValueError when a term of the configuration lacks its tensor.
    """
    policy = POLICY_LOSSES[config.loss_mode](
        log_probs, old_log_probs, advantages, response_mask, config.clip, rollout_is_weights=rollout_is_weights
    )
    loss = aggregate(policy.losses, response_mask, config.loss_agg_mode, denominators)
    shares = {"actor/pg_loss": loss}
    metrics = dict(policy.metrics)
    if config.entropy_coeff and entropy is None:
        raise ValueError(f"entropy_coeff is {config.entropy_coeff}, but no entropy was given")
    if entropy is not None:
        metrics["actor/entropy"] = Mean(float(masked_sum(entropy.detach().double(), response_mask)), float(response_mask.bool().sum()))
    if config.entropy_coeff and entropy is not None:
        shares["actor/entropy_loss"] = aggregate(entropy, response_mask, config.loss_agg_mode, denominators)
        loss = loss - config.entropy_coeff * shares["actor/entropy_loss"]
    if config.use_kl_loss:
        if ref_log_prob is None:
            raise ValueError("use_kl_loss is set, but no ref_log_prob was given")
        kl = kl_penalty(masked(log_probs, response_mask), masked(ref_log_prob, response_mask), config.kl_loss_type)
        shares["actor/kl_loss"] = aggregate(kl, response_mask, config.loss_agg_mode, denominators)
        loss = loss + config.kl_loss_coef * shares["actor/kl_loss"]
        metrics["actor/kl_coef"] = Last(config.kl_loss_coef)
    shares["actor/loss"] = loss
    values = torch.stack([share.detach() for share in shares.values()]).tolist()
    return loss, metrics | {name: Sum(value) for name, value in zip(shares, values, strict=True)}
