"""How TRL's recorded losses, ratios and filters are called here."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from asyncrl.algorithms.aggregation import Denominators, aggregate
from asyncrl.algorithms.kl import kl_penalty
from asyncrl.algorithms.losses import POLICY_LOSSES, PolicyLoss, PolicyRows, loss_options
from asyncrl.algorithms.losses.cispo import CispoOptions, cispo
from asyncrl.algorithms.losses.grpo import GrpoOptions, grpo
from asyncrl.algorithms.masked import masked, masked_mean, masked_sum
from asyncrl.algorithms.rollout_correction.weights import bounded_weights, log_weights
from asyncrl.algorithms.trl import LOSS_TYPES, correction_bounds, high_entropy_tokens, off_policy_keep
from asyncrl.metrics import Mean
from tests.goldens.case import Adapter, Answer, Case, NotCovered, tensor

COUNTED_IN_THE_BATCH = ("dapo", "cispo", "vespo")
"""Loss types that are divided by the tokens of all gradient accumulation steps; the others by the steps."""


def loss(case: Case) -> Answer:
    params = case.params
    if params["loss_type"] not in LOSS_TYPES:
        raise NotCovered(f"loss type {params['loss_type']}")
    log_probs, entropy, mask = case.tensor("log_prob").requires_grad_(), case.tensor("entropy").requires_grad_(), case.tensor("mask")
    rows = _rows(case, log_probs, mask)
    policy = _policy(params, rows)
    losses = policy.losses * _kept(case, rows)
    mode, of = LOSS_TYPES[params["loss_type"]][1], _denominators(case, mask)
    metrics = {"entropy": masked_mean(entropy, mask), **_clip_metrics(policy, mask)}
    if params["beta"]:
        kl = _kl(case, rows)
        losses = losses + params["beta"] * kl
        metrics["kl"] = masked_mean(kl, mask)
    total = aggregate(losses, mask, mode, of)
    if params["entropy_coef"]:
        metrics |= {"policy_loss": total.detach(), "entropy_coef": params["entropy_coef"]}
        total = total - params["entropy_coef"] * masked_mean(entropy, mask)
    grads = torch.autograd.grad(total, [log_probs, entropy], allow_unused=True, materialize_grads=True)
    answer = {"loss": total, "grad_log_prob": grads[0], "metrics": metrics}
    return {**answer, "grad_entropy": grads[1]} if "grad_entropy" in case.outputs else answer


def _rows(case: Case, log_probs: Tensor, mask: Tensor) -> PolicyRows:
    weights = case.tensor("importance_sampling_ratio") if case.params["use_vllm_is_correction"] else None
    advantages = case.tensor("advantages")[:, None].expand_as(log_probs)
    return PolicyRows(log_probs, case.tensor("old_log_prob"), advantages, mask, weights)


def _policy(params: Mapping[str, Any], rows: PolicyRows) -> PolicyLoss:
    mode = LOSS_TYPES[params["loss_type"]][0]
    settings = dict(params)
    if mode == "cispo":  # its epsilon_high is the bound itself, and there is none below
        settings |= {"clip_ratio_low": 1.0, "clip_ratio_high": params["epsilon_high"] - 1}
    by_row = params["importance_sampling_level"] == "sequence"
    if mode == "luspo" and not by_row:
        mode = "grpo"
    if mode == "cispo" and by_row:
        rows = replace(rows, old_log_probs=(rows.log_probs - rows.row_log_ratio()).detach())
    if mode == "sapo" and by_row:
        rows = replace(rows, log_probs=rows.old_log_probs + rows.row_log_ratio())
    settings |= {"tau_pos": params["sapo_temperature_pos"], "tau_neg": params["sapo_temperature_neg"]}
    settings |= {f"vespo_{name}": value for name, value in params["vespo"].items()}
    policy = POLICY_LOSSES[mode].function(rows, loss_options(mode, settings))
    if mode == "cispo":
        policy.metrics["cispo_clip_ratio"] = _clipped_upwards(rows, loss_options(mode, settings), by_row)
    return policy


def _clipped_upwards(rows: PolicyRows, options: CispoOptions, by_row: bool) -> Mean:
    """TRL counts clipped weights where the advantage is > 0, as a part of all tokens, or of all rows with one weight each."""
    mask = rows.response_mask.bool()
    counted = mask & (mask.cumsum(-1) == 1) if by_row else mask
    found = cispo(replace(rows, response_mask=counted & (rows.advantages > 0)), options).metrics["actor/pg_clipfrac"]
    assert isinstance(found, Mean)
    return Mean(found.total, float(len(mask) if by_row else mask.sum()))


def _kept(case: Case, rows: PolicyRows) -> Tensor:
    """1 where a token is trained on."""
    keep = torch.ones_like(rows.response_mask)
    threshold, quantile = case.params["off_policy_mask_threshold"], case.params["top_entropy_quantile"]
    if threshold is not None:
        sampled = case.tensor("sampling_log_prob")
        keep = keep * off_policy_keep(rows.advantages, rows.log_probs, sampled, rows.response_mask, threshold)[:, None]
    if quantile < 1:
        exact = tensor(case.inputs["entropy"], torch.float64)  # the recorded choice, also where the case is run in float32
        keep = keep * high_entropy_tokens(exact, rows.response_mask, quantile)
    return keep


def _kl(case: Case, rows: PolicyRows) -> Tensor:
    kl = kl_penalty(rows.clean(rows.log_probs), rows.clean(case.tensor("ref_log_prob")), "k3")
    if case.params["use_bias_correction_kl"]:
        kl = kl * torch.exp(_level(case, rows))
    return kl


def _level(case: Case, rows: PolicyRows) -> Tensor:
    return rows.log_ratio() if case.params["importance_sampling_level"] == "token" else rows.row_log_ratio()


def _denominators(case: Case, mask: Tensor) -> Denominators:
    """TRL counts empty rows, and gradient accumulation steps; what is divided by either is divided by the product here."""
    params, kind = case.params, case.params["loss_type"]
    tokens = case.inputs["num_items_in_batch"]
    steps = params["gradient_accumulation_steps"]
    if kind not in COUNTED_IN_THE_BATCH:
        tokens = max(float(mask.sum()), 1.0) * steps
    return Denominators(tokens, len(mask) * steps, params["max_completion_length"])


def _clip_metrics(policy: PolicyLoss, mask: Tensor) -> dict[str, float]:
    """By TRL's names, with its empty rows: one that counts has no clipped token and a weight of 1."""
    empty = int((~mask.bool().any(-1)).sum())
    found = {name.removeprefix("actor/"): metric for name, metric in policy.metrics.items()}
    rows = len(mask) - empty
    values: dict[str, float] = {}
    for name, metric in found.items():
        if not name.startswith(("clip_ratio/", "vespo/", "cispo")):
            continue
        value = metric.value()
        if isinstance(metric, Mean) and metric.weight == rows:
            value = (metric.total + (empty if name.startswith("vespo/") else 0)) / len(mask)
        values[name] = min(value, 0.0) if name.endswith("low_min") and empty else value
    return values


def importance_ratio(case: Case) -> Answer:
    """An unknown log-prob of the sampler, NaN, is no difference."""
    old, mask = case.tensor("old_log_probs"), case.tensor("mask")
    sampled = case.tensor("sampling_log_probs")
    level, bounds = correction_bounds(case.params["mode"], case.params["clip_min"], case.params["clip_max"])
    log_ratio = masked(torch.where(torch.isnan(sampled), 0.0, old - sampled), mask)
    _, weights = bounded_weights(log_weights(log_ratio, mask, level), mask, bounds)
    # What is no difference has weight 1 there, also under the mask and in an empty row; a band may leave that out.
    _, nothing = bounded_weights(torch.zeros_like(old), torch.ones_like(mask), bounds)
    weights = torch.where(mask.bool(), weights, nothing)
    return {"ratio": weights if level == "token" else weights.gather(-1, mask.bool().int().argmax(-1, keepdim=True))}


def off_policy_mask(case: Case) -> Answer:
    mask = case.tensor("mask")
    advantages = case.tensor("advantages").expand_as(mask)
    keep = off_policy_keep(advantages, case.tensor("log_prob"), case.tensor("sampling_log_prob"), mask, case.params["threshold"])
    return {"keep": keep[:, None]}


def rloo_loss(case: Case) -> Answer:
    """One action a row: the log-prob of the whole answer. A row without a token is a row of log-prob 0 there."""
    log_probs, mask = case.tensor("log_prob").requires_grad_(), case.tensor("mask")
    old, advantages = case.tensor("old_seq_log_prob")[:, None], case.tensor("advantages")[:, None]
    ones = torch.ones_like(old)
    policy = grpo(PolicyRows(masked_sum(log_probs, mask, -1)[:, None], old, advantages, ones), _grpo_options(case.params))
    total = aggregate(policy.losses, ones, "token-mean", Denominators.of(ones, 1))
    return {"loss": total, "grad_log_prob": torch.autograd.grad(total, log_probs)[0], "metrics": _clip_metrics(policy, ones)}


def _grpo_options(params: Mapping[str, Any]) -> GrpoOptions:
    return GrpoOptions(params["epsilon"], params["epsilon_high"])


TRL: dict[str, Adapter] = {
    "trl_rloo_loss": rloo_loss,
    "trl_importance_ratio": importance_ratio,
    "trl_off_policy_mask": off_policy_mask,
}
TRL_PREFIXES: dict[str, Adapter] = {"trl_loss.": loss}
