"""How the recorded policy losses, aggregations and the actor's and critic's losses are called here."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from asyncrl.algorithms.aggregation import Denominators, aggregate
from asyncrl.algorithms.losses import POLICY_LOSSES, PolicyRows, loss_options
from asyncrl.algorithms.losses.bypass_mode import BypassOptions, prepare_bypass
from asyncrl.algorithms.losses.covariance import covariances, quota
from asyncrl.algorithms.losses.kl_cov import KlCovOptions
from asyncrl.algorithms.objective import ObjectiveConfig, policy_objective
from asyncrl.algorithms.ranks import alone, row_seeds, token_draws
from asyncrl.algorithms.value_loss import value_loss
from asyncrl.metrics import Mean, Metrics, scalars
from tests.goldens.case import Adapter, Answer, Case, NotCovered, tensor
from tests.goldens.pipeline import correction_options, pad


def _options(params: Mapping[str, Any]) -> Any:
    """The options of a loss, out of verl's actor section as a case holds it."""
    ratio = params.get("clip_ratio", 0.2)
    settings = {**params, **params.get("policy_loss", {})}
    for bound in ("clip_ratio_low", "clip_ratio_high"):
        settings[bound] = ratio if settings.get(bound) is None else settings[bound]
    if params.get("rollout_correction") is not None:
        settings["rollout_correction"] = correction_options(params["rollout_correction"])
    return loss_options(params["loss_mode"], settings)


def denominators(mask: Tensor, params: Mapping[str, Any], *, all_rows: bool = False) -> Denominators:
    """The counts that a case gives, or those of its own mask; ``all_rows`` counts empty rows as well."""
    scale = params.get("loss_scale_factor") or mask.shape[1]
    local = Denominators.of(mask, scale)
    tokens, sequences = params.get("batch_num_tokens"), params.get("global_batch_size")
    rows = float(len(mask)) if all_rows else local.sequences
    return Denominators(local.tokens if tokens is None else tokens, rows if sequences is None else sequences, scale)


def _prepared(mode: str, rows: PolicyRows, options: Any) -> tuple[PolicyRows, Metrics]:
    """The rows after the first phase of a loss that has one, as if they were the whole mini-batch."""
    prepare = POLICY_LOSSES[mode].prepare
    if prepare is None:
        return rows, {}
    draws = _draws(rows, options)
    if isinstance(options, BypassOptions):
        found = prepare_bypass(rows, options, draws=draws, gather=alone, count_empty_rows=True)
    else:
        found = prepare(rows, options, draws=draws, gather=alone)
    ready = PolicyRows(rows.log_probs, rows.old_log_probs, rows.advantages, found.response_mask, found.rollout_is_weights, found.selected)
    return ready, found.metrics


def _draws(rows: PolicyRows, options: Any) -> Tensor:
    """Where covariances are equal, verl takes what torch.topk happens to take; ours the smaller draw."""
    draws = token_draws(row_seeds(0, (), [str(row) for row in range(len(rows.log_probs))]), rows.log_probs.shape[1])
    if not isinstance(options, KlCovOptions):
        return draws
    covariance, tokens = covariances(rows, alone)
    chosen = torch.topk(covariance[rows.response_mask.bool()], min(tokens, quota(options.kl_cov_ratio, tokens))).indices
    ties = torch.ones(tokens, dtype=torch.int64)
    ties[chosen] = 0
    return torch.ones_like(draws).masked_scatter_(rows.response_mask.bool(), ties)


def policy_loss(case: Case) -> Answer:
    mode = case.params["loss_mode"]
    if mode not in POLICY_LOSSES:
        raise NotCovered(f"policy loss {mode}")
    params = case.params
    if mode == "dro" and not any(map(any, case.inputs["response_mask"])):
        params = {"dro_beta": 1.0, **params}  # named by no case where no token is left to which it could matter
    kind, options = POLICY_LOSSES[mode], _options(params)
    log_probs = case.tensor("log_prob").requires_grad_()
    weights = case.tensor("rollout_is_weights") if case.inputs.get("rollout_is_weights") is not None else None
    given = PolicyRows(log_probs, case.tensor("old_log_prob"), case.tensor("advantages"), case.tensor("response_mask"), weights)
    rows, metrics = _prepared(mode, given, options)
    policy = kind.function(rows, options)
    told = case.params.get("global_batch_info") or {}
    counts = denominators(rows.response_mask, told, all_rows=mode == "geo_mean")
    loss = aggregate(policy.losses, rows.response_mask, kind.loss_agg_mode or case.params["loss_agg_mode"], counts) * told.get("dp_size", 1)
    (grad,) = torch.autograd.grad(loss, log_probs)
    return {"loss": loss, "grad_log_prob": grad, "metrics": _metrics(metrics | policy.metrics)}


def _metrics(found: Metrics) -> dict[str, float]:
    """By verl's names, where the correction's have no prefix; a mean over no token is 0 there and not a number here."""
    values = {name: 0.0 if isinstance(metric, Mean) and not metric.weight else metric.value() for name, metric in found.items()}
    return {name.replace("actor/rollout_corr", "rollout_corr"): value for name, value in values.items()}


def agg_loss(case: Case) -> Answer:
    losses, mask = case.tensor("loss_mat").requires_grad_(), case.tensor("loss_mask")
    mode, parts = case.params["loss_agg_mode"], case.params.get("dp_size", 1)
    count = {"token-mean": "batch_num_tokens", "token-sum": "dp_size"}.get(mode, "global_batch_size")
    if parts > 1 and case.params.get(count) is None:
        # Several ranks, and nobody knows the whole batch: the signature has no such call.
        raise ValueError(f"{mode} over {parts} ranks needs {count}")
    of = denominators(mask, case.params)
    whole = aggregate(losses, mask, mode, of) * parts
    if "micro_rows" in case.inputs:
        micro = [aggregate(losses[a:b], mask[a:b], mode, of) * parts for a, b in case.inputs["micro_rows"]]
        return {"micro_losses": micro, "sum": sum(micro), "whole": whole}
    answer: dict[str, Any] = {"loss": whole}
    if "grad_loss_mat" in case.outputs:
        (answer["grad_loss_mat"],) = torch.autograd.grad(whole, losses)
    return answer


def critic_loss(case: Case) -> Answer:
    values, mask = case.tensor("vpreds").requires_grad_(), case.tensor("response_mask")
    loss, metrics = value_loss(
        values,
        case.tensor("values"),
        case.tensor("returns"),
        mask,
        denominators(mask, case.params),
        cliprange_value=case.params["cliprange_value"],
        loss_agg_mode=case.params["loss_agg_mode"],
    )
    parts = case.params.get("dp_size", 1)
    (grad,) = torch.autograd.grad(loss * parts, values)
    return {"vf_loss": loss * parts, "vf_clipfrac": metrics["critic/vf_clipfrac"].value(), "grad_vpreds": grad}


def actor_loss(case: Case) -> Answer:
    if case.params["loss_mode"] not in POLICY_LOSSES:
        raise NotCovered(f"policy loss {case.params['loss_mode']}")
    return {"micro": [_actor_micro(case, rows) for rows in case.inputs["micro_batches"]]}


def _actor_micro(case: Case, rows: list[int]) -> Answer:
    """A micro-batch without global counts is a whole batch of its own."""
    params, inputs = case.params, case.inputs
    starts = [inputs["prompt_lengths"][row] - 1 for row in rows]
    ends = [start + inputs["response_lengths"][row] for start, row in zip(starts, rows, strict=True)]
    outputs = {name: [tensor(inputs[name][row], case.dtype).requires_grad_() for row in rows] for name in ("log_probs", "entropy")}
    fields = {
        name: pad([tensor(inputs[name][row], case.dtype) for row in rows])
        for name in ("response_mask", "old_log_probs", "advantages", "ref_log_prob", "rollout_is_weights")
        if inputs.get(name) is not None
    }
    cut = {name: pad([row[a:b] for row, a, b in zip(values, starts, ends, strict=True)]) for name, values in outputs.items()}
    kind, options = POLICY_LOSSES[params["loss_mode"]], _options(params)
    terms = {name: params[name] for name in ("loss_agg_mode", "entropy_coeff", "use_kl_loss", "kl_loss_coef", "kl_loss_type")}
    given = PolicyRows(
        cut["log_probs"], fields["old_log_probs"], fields["advantages"], fields["response_mask"], fields.get("rollout_is_weights")
    )
    ready, _ = _prepared(params["loss_mode"], given, options)
    counts = denominators(ready.response_mask, params, all_rows=params["loss_mode"] == "geo_mean")
    config = ObjectiveConfig(policy_loss=kind, options=options, **terms)
    loss, metrics = policy_objective(ready, cut["entropy"], fields.get("ref_log_prob"), config, counts)
    parts = params["dp_size"]
    leaves = [*outputs["log_probs"], *outputs["entropy"]]
    grads = torch.autograd.grad(loss * parts, leaves, allow_unused=True, materialize_grads=True)
    return {
        "loss": loss * parts,
        "grad_log_probs": list(grads[: len(rows)]),
        "grad_entropy": list(grads[len(rows) :]),
        "metrics": _verl_names(scalars(metrics), parts, _expected(case, rows)),
    }


def _expected(case: Case, rows: list[int]) -> Mapping[str, Any]:
    found: Mapping[str, Any] = case.outputs["micro"][case.inputs["micro_batches"].index(rows)]["metrics"]
    return found


def _verl_names(metrics: Mapping[str, float], parts: int, golden: Mapping[str, Any]) -> dict[str, float]:
    """The actor's metrics as its loss function names them, before the trainer's prefix; sums are scaled like the loss."""
    named = {name.removeprefix("actor/") if "kl_loss" in name or "kl_coef" in name else name: value for name, value in metrics.items()}
    scaled = {name: value * parts if name in ("actor/pg_loss", "actor/entropy_loss", "kl_loss") else value for name, value in named.items()}
    extra = {"actor/loss", "actor/entropy"}  # reported elsewhere by verl
    assert set(golden) <= set(scaled), f"missing metrics {sorted(set(golden) - set(scaled))}"
    return {name: value for name, value in scaled.items() if name not in extra}


LOSSES: dict[str, Adapter] = {"agg_loss": agg_loss, "value_loss": critic_loss, "actor_loss": actor_loss}
