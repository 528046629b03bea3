"""What the actor minimises: ``policy loss - entropy_coeff * entropy + kl_loss_coef * KL``."""

from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from asyncrl.algorithms.aggregation import AGGREGATIONS, Denominators, aggregate
from asyncrl.algorithms.kl import KL_TYPES, kl_penalty
from asyncrl.algorithms.losses import POLICY_LOSSES, AnyPolicyLossKind, PolicyLoss, PolicyRows
from asyncrl.algorithms.losses.vanilla import VanillaOptions
from asyncrl.algorithms.readings import mean, read
from asyncrl.metrics import Last, Metrics, Sum


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectiveConfig:
    """The terms of the objective; the names are those of verl's actor section."""

    policy_loss: AnyPolicyLossKind = POLICY_LOSSES["vanilla"]
    options: Any = field(default_factory=VanillaOptions)
    """The options of that loss, an instance of its ``options`` class."""
    loss_agg_mode: str = "token-mean"
    """How each term becomes one number; a policy loss that is defined with an aggregation of its own keeps that."""
    entropy_coeff: float = 0.0
    use_kl_loss: bool = False
    kl_loss_coef: float = 0.001
    kl_loss_type: str = "low_var_kl"

    def __post_init__(self) -> None:
        for name, value, known in (("loss_agg_mode", self.loss_agg_mode, AGGREGATIONS), ("kl_loss_type", self.kl_loss_type, KL_TYPES)):
            if value not in known:
                raise ValueError(f"unknown {name} {value!r}; known: {', '.join(known)}")
        if not isinstance(self.options, self.policy_loss.options):
            raise ValueError(f"this policy loss takes {self.policy_loss.options.__name__}, got {type(self.options).__name__}")

    @property
    def policy_agg_mode(self) -> str:
        """The aggregation of the policy loss."""
        return self.policy_loss.loss_agg_mode or self.loss_agg_mode

    @property
    def needs_preparation(self) -> bool:
        """Whether ``policy_loss.prepare`` must see the whole mini-batch before the first gradient."""
        return self.policy_loss.needs_preparation(self.options)


def policy_objective(
    rows: PolicyRows, entropy: Tensor | None, ref_log_prob: Tensor | None, config: ObjectiveConfig, denominators: Denominators
) -> tuple[Tensor, Metrics]:
    """This part's share of the mini-batch's loss, a scalar, and its metrics.

    All tensors [N, R]. The shares and the ``Sum`` metrics (``actor/pg_loss``, ``actor/kl_loss``, ``actor/entropy_loss``,
    ``actor/loss``) of all micro-batches and ranks add up to the value of the whole mini-batch; means such as
    ``actor/entropy`` carry their weight. An ``entropy`` is reported also when its coefficient is 0, and then gets no
    gradient. Raises ValueError when a term of the configuration lacks its tensor.
    """
    mask = rows.response_mask.bool()
    rows = replace(rows, response_mask=mask)
    policy = config.policy_loss.function(rows, config.options)
    if not isinstance(policy, PolicyLoss):
        raise TypeError(f"{config.policy_loss.function!r} returned a {type(policy).__name__}, expected a PolicyLoss")
    loss = aggregate(policy.losses, mask, config.policy_agg_mode, denominators)
    shares, metrics = {"actor/pg_loss": loss}, dict(policy.metrics)
    if config.entropy_coeff and entropy is None:
        raise ValueError(f"entropy_coeff is {config.entropy_coeff}, but no entropy was given")
    if entropy is not None:
        metrics |= read({"actor/entropy": mean(entropy.detach(), mask)})
        shares["actor/entropy_loss"] = aggregate(entropy, mask, config.loss_agg_mode, denominators)
        if config.entropy_coeff:
            loss = loss - config.entropy_coeff * shares["actor/entropy_loss"]
    if config.use_kl_loss:
        if ref_log_prob is None:
            raise ValueError("use_kl_loss is set, but no ref_log_prob was given")
        kl = kl_penalty(rows.clean(rows.log_probs), rows.clean(ref_log_prob), config.kl_loss_type)
        shares["actor/kl_loss"] = aggregate(kl, mask, config.loss_agg_mode, denominators)
        loss = loss + config.kl_loss_coef * shares["actor/kl_loss"]
        metrics["actor/kl_coef"] = Last(config.kl_loss_coef)
    shares["actor/loss"] = loss
    values = torch.stack([share.detach() for share in shares.values()]).tolist()
    return loss, metrics | {name: Sum(value) for name, value in zip(shares, values, strict=True)}
