"""What TRL's GRPO options are here: its loss types by our names, and the row and token filters that verl does not have."""

from collections.abc import Mapping

import torch
from torch import Tensor

from asyncrl.algorithms.masked import masked, masked_mean
from asyncrl.algorithms.ranks import AllGather, alone
from asyncrl.algorithms.rollout_correction.options import WeightBounds

LOSS_TYPES: Mapping[str, tuple[str, str]] = {
    "grpo": ("grpo", "seq-mean-token-mean"),
    "bnpo": ("grpo", "token-mean"),
    "dr_grpo": ("grpo", "seq-mean-token-sum-norm"),
    "dapo": ("grpo", "token-mean"),
    "luspo": ("luspo", "seq-mean-token-sum"),
    "cispo": ("cispo", "token-mean"),
    "sapo": ("sapo", "seq-mean-token-mean"),
    "vespo": ("vespo", "token-mean"),
}
"""``loss_mode`` and ``loss_agg_mode`` of each ``loss_type``. TRL counts an empty row where it averages rows, and its ``bnpo`` and
``dapo`` differ only in whether T is counted in the micro-batch or in the whole batch: here it is always the whole."""

CORRECTION_MODES: Mapping[str, tuple[str, bool]] = {
    "token_truncate": ("token", False),
    "token_mask": ("token", True),
    "sequence_truncate": ("sequence", False),
    "sequence_mask": ("sequence", True),
}
"""``rollout_is`` and ``WeightBounds.zero_outside`` of each ``vllm_importance_sampling_mode``."""


def correction_bounds(mode: str, clip_min: float | None, clip_max: float | None) -> tuple[str, WeightBounds]:
    """The level and the bounds of a ``vllm_importance_sampling_mode``. Raises ValueError for an unknown one."""
    if mode not in CORRECTION_MODES:
        raise ValueError(f"unknown vllm_importance_sampling_mode {mode!r}; known: {', '.join(CORRECTION_MODES)}")
    level, zero_outside = CORRECTION_MODES[mode]
    return level, WeightBounds(clip_min or 0.0, torch.inf if clip_max is None else clip_max, zero_outside)


@torch.no_grad()
def off_policy_keep(advantages: Tensor, log_probs: Tensor, rollout_log_probs: Tensor, mask: Tensor, threshold: float) -> Tensor:
    """Rows to keep [N] bool: A >= 0, or a mean of ``log p_rollout - log p`` of at most ``threshold``; other tensors [N, R].

    ``off_policy_mask_threshold``, the off-policy sequence mask of DeepSeek-V3.2, https://arxiv.org/abs/2512.02556. A row's advantage
    is its mean one. What is not kept has loss 0 and stays in the denominators.
    """
    drift = masked_mean(rollout_log_probs - log_probs, mask, -1)
    return (masked_mean(advantages, mask, -1) >= 0) | (drift <= threshold)


@torch.no_grad()
def high_entropy_tokens(entropy: Tensor, mask: Tensor, quantile: float, *, gather: AllGather = alone) -> Tensor:
    """The tokens whose entropy is in the top ``quantile`` of all trainable tokens over all ranks: [N, R] bool.

    ``top_entropy_quantile``, https://arxiv.org/abs/2506.01939. TRL trains on these alone; the others stay in the denominators. As
    it looks at the whole mini-batch, it belongs into a first phase. Raises ValueError for a quantile out of (0, 1].
    """
    if not 0 < quantile <= 1:
        raise ValueError(f"top_entropy_quantile must be in (0, 1], got {quantile}")
    seen = gather(entropy[mask.bool()][:, None]).flatten()
    if not len(seen):
        return torch.zeros_like(mask, dtype=torch.bool)
    ordered = torch.sort(seen.float()).values  # as TRL: log-probs and entropies are float32 in training
    place = (1 - quantile) * (len(ordered) - 1)
    below = int(place)
    above = min(below + 1, len(ordered) - 1)
    threshold = ordered[below] + (place - below) * (ordered[above] - ordered[below])
    return (masked(entropy, mask) >= threshold) & mask.bool()
