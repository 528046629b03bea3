"""Rollout correction in plain torch, a row at a time: nothing of asyncrl. A second method.

``new`` and ``old``: log-probs of the trainable tokens of each row under the policy that trains and the one that sampled. Settings:
rollout_is (None, "token", "sequence"), rollout_is_threshold (a number, or "lo_hi"), normalize, rollout_rs and
rollout_rs_threshold (comma lists).
"""

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

Settings = dict[str, Any]


def corrected(new: Sequence[Tensor], old: Sequence[Tensor], settings: Settings) -> tuple[list[Tensor], list[Tensor], dict[str, float]]:
    """Weights and kept tokens of each row, and metrics."""
    ratios = [n - o for n, o in zip(new, old, strict=True)]
    metrics = off_policy(new, old)
    weights = [torch.ones_like(ratio) for ratio in ratios]
    if settings.get("rollout_is"):
        weights = bounded(ratios, settings)
        flat = torch.cat(weights)
        metrics["rollout_is_mean"] = flat.mean().item()
        metrics["rollout_is_eff_sample_size"] = (flat.sum() ** 2 / (flat**2).sum() / len(flat)).item()
        if settings.get("normalize"):
            heads = flat if settings["rollout_is"] == "token" else torch.stack([weight[0] for weight in weights if len(weight)])
            metrics["rollout_is_batch_norm_factor"] = heads.mean().item()
            weights = [weight / heads.mean() for weight in weights]
    kept = [torch.ones_like(ratio, dtype=torch.bool) for ratio in ratios]
    if settings.get("rollout_rs"):
        kept = [passes(-ratio, settings) for ratio in ratios]
        metrics["rollout_rs_masked_fraction"] = 1 - torch.cat(kept).float().mean().item()
    return weights, kept, metrics


def bounded(ratios: Sequence[Tensor], settings: Settings) -> list[Tensor]:
    found = []
    for ratio in ratios:
        weight = ratio.exp() if settings["rollout_is"] == "token" else ratio.sum().exp().expand_as(ratio)
        bounds = [float(part) for part in str(settings["rollout_is_threshold"]).split("_")]
        if len(bounds) == 1:
            found.append(weight.clamp(max=bounds[0]))
        else:
            found.append(torch.where((weight < bounds[0]) | (weight > bounds[1]), 0.0, weight))
    return found


def passes(d: Tensor, settings: Settings) -> Tensor:
    """Which tokens of a row pass every criterion; d = log p_rollout - log p_train."""
    names = settings["rollout_rs"].split(",")
    thresholds = str(settings["rollout_rs_threshold"]).split(",")
    kept = torch.ones_like(d, dtype=torch.bool)
    for name, threshold in zip(names, thresholds * (len(names) if len(thresholds) == 1 else 1), strict=True):
        level, k = name.rsplit("_", 1)
        values = {"k1": d, "k2": d**2 / 2, "k3": torch.exp(-d) - 1 + d}[k]
        if level != "token" and len(d):
            values = {"seq_sum": values.sum(), "seq_mean": values.mean(), "seq_max": values.max()}[level].expand_as(d)
        bounds = [float(part) for part in threshold.split("_")]
        low = -math.inf if k != "k1" else math.log(bounds[0] if len(bounds) == 2 else 1 / bounds[0])
        high = math.log(bounds[-1]) if k == "k1" else bounds[0]
        kept &= (values >= low) & (values <= high)
    return kept


def off_policy(new: Sequence[Tensor], old: Sequence[Tensor]) -> dict[str, float]:
    """How far apart the two policies are."""
    apart = torch.cat(list(old)) - torch.cat(list(new))
    rows = [(-n.mean(), -o.mean()) for n, o in zip(new, old, strict=True) if len(n)]
    sums = torch.stack([(n - o).sum() for n, o in zip(new, old, strict=True) if len(n)])
    train, rollout = (torch.stack(part) for part in zip(*rows, strict=True))
    return {
        "kl": apart.mean().item(),
        "k3_kl": (torch.exp(-apart) - 1 + apart).mean().item(),
        "chi2_token": (torch.exp(-2 * apart) - 1).mean().item(),
        "chi2_seq": (torch.exp(2 * sums) - 1).mean().item(),
        "training_ppl": train.exp().mean().item(),
        "rollout_ppl": rollout.exp().mean().item(),
        "log_ppl_diff": (train - rollout).mean().item(),
        "ppl_ratio": (train - rollout).exp().mean().item(),
    }
