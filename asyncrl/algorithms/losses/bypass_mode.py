"""The loss when ``old_log_probs`` are the rollout engine's: rollout correction between the engine and the policy of *now*.

Aggregated as ``loss_agg_mode`` says; the counts it is divided by are those of the whole mini-batch after rejection. They are
known only once the whole mini-batch has been evaluated: rejection, and the normalisation of weights over the batch, need
a first phase. Without either there is none, and each row's weights come from its own log-probs.
"""

from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from asyncrl.algorithms.losses.policy_loss import PolicyLoss, PolicyRows, Prepared
from asyncrl.algorithms.losses.vanilla import VanillaOptions, vanilla
from asyncrl.algorithms.ranks import AllGather, alone
from asyncrl.algorithms.rollout_correction.correction import Correction, rollout_correction
from asyncrl.algorithms.rollout_correction.options import RolloutCorrectionOptions
from asyncrl.metrics import Metrics


@dataclass(frozen=True, slots=True)
class BypassOptions:
    """The correction, and the clip of ``loss_type=ppo_clip``."""

    rollout_correction: RolloutCorrectionOptions = field(default_factory=RolloutCorrectionOptions)
    clip_ratio_low: float = 0.2
    clip_ratio_high: float = 0.2
    clip_ratio_c: float = 3.0

    def __post_init__(self) -> None:
        _ = self.clip

    @property
    def clip(self) -> VanillaOptions:
        """The options of the clipped loss."""
        return VanillaOptions(self.clip_ratio_low, self.clip_ratio_high, self.clip_ratio_c)


def bypass_needs_preparation(options: BypassOptions) -> bool:
    """Whether something must be known of the whole mini-batch."""
    correction = options.rollout_correction
    return bool(correction.criteria) or (correction.rollout_is is not None and correction.rollout_is_batch_normalize)


@torch.no_grad()
def prepare_bypass(
    rows: PolicyRows, options: BypassOptions, /, *, draws: Tensor, gather: AllGather, count_empty_rows: bool = False
) -> Prepared:
    """The weights and the mask after rejection of all rows, with ``actor/rollout_corr/*``."""
    found = _corrected(rows, options, gather, count_empty_rows)
    weights = torch.ones_like(rows.old_log_probs) if found.rollout_is_weights is None else found.rollout_is_weights
    return Prepared(found.response_mask, weights, None, _actor(found.metrics))


def bypass_mode(rows: PolicyRows, options: BypassOptions, /) -> PolicyLoss:
    """``ppo_clip``: the clipped loss, whose ratio to the engine's policy already is the importance weight.
    ``reinforce``: ``-A w log_prob`` with the importance weights w, without a ratio.

    Rows that went through ``prepare_bypass`` carry their weights and their mask after rejection. Metrics as ``vanilla``, or
    ``actor/ppo_kl`` alone; ``actor/rollout_corr/*`` when there was no first phase.
    """
    metrics: Metrics = {}
    if rows.rollout_is_weights is None:
        if bypass_needs_preparation(options):
            raise ValueError("rejection and batch normalisation need what prepare_bypass finds in the whole mini-batch")
        found = _corrected(rows, options, alone, False)
        rows, metrics = replace(rows, rollout_is_weights=found.rollout_is_weights), _actor(found.metrics)
    if options.rollout_correction.loss_type == "ppo_clip":
        result = vanilla(replace(rows, rollout_is_weights=None), options.clip)
    else:
        result = rows.weighted(-rows.advantages * rows.clean(rows.log_probs), rows.token_means(ppo_kl=-rows.log_ratio()))
    return PolicyLoss(result.losses, metrics | result.metrics)


def _corrected(rows: PolicyRows, options: BypassOptions, gather: AllGather, count_empty_rows: bool) -> Correction:
    return rollout_correction(
        rows.log_probs.detach(),
        rows.old_log_probs,
        rows.response_mask,
        options.rollout_correction,
        gather=gather,
        count_empty_rows=count_empty_rows,
    )


def _actor(metrics: Metrics) -> Metrics:
    return {f"actor/{name}": metric for name, metric in metrics.items()}
