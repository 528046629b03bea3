"""How each recorded function is called here: names of functions and options in, never names of cases."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from asyncrl.algorithms.advantages import ESTIMATORS
from asyncrl.algorithms.advantages.votes import outcome_advantages
from asyncrl.algorithms.aggregation import Denominators, aggregate
from asyncrl.algorithms.diagnostics import finish_probability_difference, probability_difference
from asyncrl.algorithms.kl import K3_BOUND, LOG_RATIO_BOUND, kl_penalty
from asyncrl.algorithms.kl_in_reward import AdaptiveKL, FixedKL, kl_controller, penalised_rewards
from asyncrl.algorithms.logprobs import entropy_from_logits, log_probs_from_logits, sum_pi_squared_from_logits
from asyncrl.algorithms.losses import POLICY_LOSSES
from asyncrl.algorithms.losses.policy_loss import ClipConfig
from asyncrl.algorithms.masked import masked_mean, masked_sum, masked_variance, masked_whiten, over_tokens
from asyncrl.algorithms.objective import ObjectiveConfig, policy_objective
from asyncrl.metrics import scalars
from asyncrl.trajectory import TrajectoryKey
from tests.goldens.case import Adapter, Answer, Case, NotCovered, tensor


def numbers(labels: list[Any]) -> Tensor:
    """Labels as numbers, equal for equal labels."""
    known = {label: number for number, label in enumerate(dict.fromkeys(labels))}
    return torch.tensor([known[label] for label in labels], dtype=torch.int64)


def advantage(case: Case) -> Answer:
    name = case.function.removeprefix("advantage.")
    if name not in ESTIMATORS:
        raise NotCovered(f"estimator {name}")
    options = {"normalise_by_std": case.params.get("norm_adv_by_std_in_grpo", True), "epsilon": case.params.get("epsilon", 1e-6)}
    scores = case.tensor("token_level_rewards").sum(-1)
    advantages = over_tokens(ESTIMATORS[name](scores, numbers(case.inputs["uid"]), **options), case.tensor("response_mask"))
    return {"advantages": advantages, "returns": advantages}


def _sessions(keys: list[str]) -> tuple[Tensor, Tensor, Tensor]:
    """Groups, sessions and indices from ``{uid}_{session}_{index}``; a uid of verl may hold underscores, ours may not."""
    parts = [TrajectoryKey.parse(key.replace("_", "-", key.count("_") - 2) if key.count("_") > 2 else key) for key in keys]
    return (
        numbers([part.uid for part in parts]),
        numbers([part.session for part in parts]),
        torch.tensor([part.index for part in parts], dtype=torch.int64),
    )


def _voted(scores: Tensor, mask: Tensor, keys: list[str], normalise_by_std: bool) -> Tensor:
    def estimate(votes: Tensor, groups: Tensor) -> Tensor:
        return ESTIMATORS["grpo"](votes, groups, normalise_by_std=normalise_by_std)

    trainable = mask.bool().any(-1)
    return over_tokens(outcome_advantages(estimate, scores, *_sessions(keys), minimum_votes=1, trainable=trainable), mask)


def multi_output(case: Case) -> Answer:
    name = case.function.removeprefix("multi_output.")
    if name not in ESTIMATORS:
        raise NotCovered(f"estimator {name}")
    scores, mask = case.tensor("token_level_rewards").sum(-1), case.tensor("response_mask")
    normalise = case.params["norm_adv_by_std_in_grpo"]
    if name == "grpo":
        advantages = _voted(scores, mask, case.inputs["keys"], normalise)
    else:  # every output is a row of its own
        advantages = over_tokens(ESTIMATORS[name](scores, numbers(case.inputs["uid"]), normalise_by_std=normalise), mask)
    return {"advantages": advantages, "returns": advantages}


def _clip(params: Mapping[str, Any]) -> ClipConfig:
    ratio = params.get("clip_ratio", 0.2)
    low, high = params.get("clip_ratio_low"), params.get("clip_ratio_high")
    return ClipConfig(ratio if low is None else low, ratio if high is None else high, params.get("clip_ratio_c", 3.0))


def _denominators(mask: Tensor, params: Mapping[str, Any]) -> Denominators:
    scale = params.get("loss_scale_factor") or mask.shape[1]
    local = Denominators.of(mask, scale)
    tokens, sequences = params.get("batch_num_tokens"), params.get("global_batch_size")
    return Denominators(local.tokens if tokens is None else tokens, local.sequences if sequences is None else sequences, scale)


def policy_loss(case: Case) -> Answer:
    mode = case.params["loss_mode"]
    if mode not in POLICY_LOSSES:
        raise NotCovered(f"policy loss {mode}")
    clip = _clip(case.params)
    mask, log_probs = case.tensor("response_mask"), case.tensor("log_prob").requires_grad_()
    weights = case.tensor("rollout_is_weights") if case.inputs.get("rollout_is_weights") is not None else None
    told = case.params.get("global_batch_info") or {}
    policy = POLICY_LOSSES[mode](log_probs, case.tensor("old_log_prob"), case.tensor("advantages"), mask, clip, rollout_is_weights=weights)
    loss = aggregate(policy.losses, mask, case.params["loss_agg_mode"], _denominators(mask, told)) * told.get("dp_size", 1)
    (grad,) = torch.autograd.grad(loss, log_probs)
    metrics = {name: value or 0.0 for name, value in scalars(policy.metrics).items()}
    if not bool(mask.any()):
        metrics = {}  # a mean over no token is not a number here
    return {"loss": loss, "grad_log_prob": grad, "metrics": metrics}


def agg_loss(case: Case) -> Answer:
    losses, mask = case.tensor("loss_mat").requires_grad_(), case.tensor("loss_mask")
    mode, parts = case.params["loss_agg_mode"], case.params.get("dp_size", 1)
    count = {"token-mean": "batch_num_tokens", "token-sum": "dp_size"}.get(mode, "global_batch_size")
    if parts > 1 and case.params.get(count) is None:
        # Several ranks, and nobody knows the whole batch: the signature has no such call.
        raise ValueError(f"{mode} over {parts} ranks needs {count}")
    denominators = _denominators(mask, case.params)
    whole = aggregate(losses, mask, mode, denominators) * parts
    if "micro_rows" in case.inputs:
        micro = [aggregate(losses[a:b], mask[a:b], mode, denominators) * parts for a, b in case.inputs["micro_rows"]]
        return {"micro_losses": micro, "sum": sum(micro), "whole": whole}
    answer: dict[str, Any] = {"loss": whole}
    if "grad_loss_mat" in case.outputs:
        (answer["grad_loss_mat"],) = torch.autograd.grad(whole, losses)
    return answer


def kl(case: Case) -> Answer:
    log_probs, reference, name = case.tensor("logprob").requires_grad_(), case.tensor("ref_logprob"), case.params["kl_penalty"]
    value = kl_penalty(log_probs, reference, name)
    (grad,) = torch.autograd.grad(value.sum(), log_probs)
    if name in ("k3", "low_var_kl"):
        grad = _without_saturation(case, grad, reference - log_probs.detach())
    return {"kl": value, "grad_logprob": grad}


def _without_saturation(case: Case, grad: Tensor, log_ratio: Tensor) -> Tensor:
    """verl's gradient is 0 where the bound of the value binds; ours pulls towards the reference there, as documented."""
    bounded = log_ratio.clamp(-LOG_RATIO_BOUND, LOG_RATIO_BOUND)
    saturated = (bounded != log_ratio) | (torch.exp(bounded) - bounded - 1 > K3_BOUND)
    assert bool((grad[saturated] * log_ratio[saturated] < 0).all()), f"{case.name}: no pull towards the reference"
    return torch.where(saturated, tensor(case.outputs["grad_logprob"], grad.dtype), grad)


def controller(case: Case) -> Answer:
    params = case.params
    beta: FixedKL | AdaptiveKL = _controller(params)
    values = []
    for current, rows in zip(case.inputs.get("current_kl", [0.0]), case.inputs.get("n_steps", [0]), strict=True):
        beta = beta.updated(current, rows)
        values.append(beta.coefficient)
    return {"values_after_each_update": values}


def _controller(params: Mapping[str, Any]) -> FixedKL | AdaptiveKL:
    return kl_controller(params["type"], params["kl_coef"], params.get("target_kl", 0.1), params.get("horizon", 10000))


def apply_kl_penalty(case: Case) -> Answer:
    beta, answers = _controller(case.params["kl_ctrl"]), []
    for step in case.inputs["steps"]:
        of = {name: tensor(values, case.dtype) for name, values in step.items()}
        rewards, metrics = penalised_rewards(
            of["token_level_scores"],
            of["old_log_probs"],
            of["ref_log_prob"],
            of["response_mask"],
            coefficient=beta.coefficient,
            kl_type=case.params["kl_penalty"],
        )
        beta = beta.updated(metrics["actor/reward_kl_penalty"].value(), len(rewards))
        answers.append({"token_level_rewards": rewards, "metrics": scalars(metrics), "coef_after": beta.coefficient})
    return {"steps": answers}


def logits(case: Case) -> Answer:
    temperature, mask = case.params["temperature"], case.tensor("response_mask")
    flat = case.tensor("logits").flatten(0, 1).requires_grad_()
    shape = case.tensor("logits").shape
    log_probs = log_probs_from_logits(flat, case.tensor("labels", torch.int64).flatten(), temperature)
    entropy = entropy_from_logits(flat, temperature)
    modes = case.outputs["entropy_loss"]
    rows = entropy.reshape(shape[:2])
    return {
        "log_probs": log_probs.reshape(shape[:2]),
        "entropy": rows,
        "sum_pi_squared": sum_pi_squared_from_logits(flat, temperature).reshape(shape[:2]),
        "grad_sum_log_probs": torch.autograd.grad(log_probs.sum(), flat)[0].reshape(shape),
        "grad_sum_entropy": torch.autograd.grad(entropy.sum(), flat)[0].reshape(shape),
        "entropy_loss": {mode: aggregate(rows, mask, mode, Denominators.of(mask, shape[1])) for mode in modes},
    }


def response_log_probs(case: Case) -> Answer:
    width, all_logits = case.params["response_length"], case.tensor("logits")
    before = all_logits[:, -width - 1 : -1]
    tokens = case.tensor("input_ids", torch.int64)[:, -width:]
    return {"log_probs": log_probs_from_logits(before.flatten(0, 1), tokens.flatten(), 1.0).reshape(tokens.shape)}


def masked_ops(case: Case) -> Answer:
    values, mask = case.tensor("values"), case.tensor("mask")
    answer: dict[str, Any] = {
        "masked_sum": masked_sum(values, mask),
        "masked_sum_rows": masked_sum(values, mask, -1),
        "masked_mean": masked_mean(values, mask),
        "masked_mean_rows": masked_mean(values, mask, -1),
        "masked_var_biased": masked_variance(values, mask, unbiased=False),
        "masked_var_unbiased": masked_variance(values, mask),
    }
    for name, shift in (("masked_whiten", True), ("masked_whiten_keep_mean", False)):
        whitened = masked_whiten(values, mask, shift_mean=shift)
        assert bool((whitened[mask == 0] == 0).all()), f"{case.name}: {name} is not 0 under the mask"
        if isinstance(case.outputs[name], list):  # what verl leaves under the mask has no meaning
            whitened = torch.where(mask.bool(), whitened, tensor(case.outputs[name], whitened.dtype))
        answer[name] = whitened
    return answer


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
    config = ObjectiveConfig(
        _clip(params),
        params["loss_agg_mode"],
        params["entropy_coeff"],
        params["use_kl_loss"],
        params["kl_loss_coef"],
        params["kl_loss_type"],
        params["loss_mode"],
    )
    loss, metrics = policy_objective(
        cut["log_probs"],
        cut["entropy"],
        fields["old_log_probs"],
        fields["advantages"],
        fields["response_mask"],
        fields.get("ref_log_prob"),
        config,
        _denominators(fields["response_mask"], params),
        rollout_is_weights=fields.get("rollout_is_weights"),
    )
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


def pad(rows: list[Tensor]) -> Tensor:
    """Rows of unequal length as one tensor, zeros on the right."""
    return torch.nn.utils.rnn.pad_sequence(rows, batch_first=True)


def compute_advantage(case: Case) -> Answer:
    params, inputs = case.params, case.inputs
    if params["adv_estimator"] != "grpo":
        raise NotCovered(f"estimator {params['adv_estimator']}")
    correction = params["rollout_correction"] or {}
    if (correction.get("rollout_is") or correction.get("rollout_rs")) and not correction["bypass_mode"]:
        raise NotCovered("rollout correction")
    of = {name: pad([tensor(row, case.dtype) for row in rows]) for name, rows in inputs.items() if name != "keys"}
    rewards, beta = of["rm_scores"], _controller(params["kl_ctrl"])
    answer: dict[str, Any] = {}
    if params["use_kl_in_reward"]:
        rewards, metrics = penalised_rewards(
            rewards,
            of["old_log_probs"],
            of["ref_log_prob"],
            of["response_mask"],
            coefficient=beta.coefficient,
            kl_type=params["kl_penalty"],
        )
        beta = beta.updated(metrics["actor/reward_kl_penalty"].value(), len(rewards))
        answer["metrics"] = scalars(metrics)
        answer["kl_coef_after"] = beta.coefficient
    advantages = _voted(rewards.sum(-1), of["response_mask"], inputs["keys"], params["norm_adv_by_std_in_grpo"])
    lengths = [len(row) for row in inputs["response_mask"]]
    fields = {"advantages": advantages, "returns": advantages, "token_level_rewards": rewards}
    answer["fields"] = {
        name: [row[:length] for row, length in zip(fields[name], lengths, strict=True)] for name in case.outputs["fields"] if name in fields
    }
    return answer


def probs_diff(case: Case) -> Answer:
    metrics = probability_difference(case.tensor("rollout_log_probs"), case.tensor("old_log_probs"), case.tensor("response_mask"))
    return {"metrics": scalars(finish_probability_difference(metrics))}


ADAPTERS: dict[str, Adapter] = {
    "kl_penalty": kl,
    "kl_controller": controller,
    "apply_kl_penalty": apply_kl_penalty,
    "agg_loss": agg_loss,
    "logits": logits,
    "response_log_probs_shift": response_log_probs,
    "masked_ops": masked_ops,
    "actor_loss": actor_loss,
    "v1_compute_advantage": compute_advantage,
    "rollout_probs_diff": probs_diff,
}
PREFIXES: dict[str, Adapter] = {"advantage.": advantage, "multi_output.": multi_output, "policy_loss.": policy_loss}


def adapter(case: Case) -> Adapter | None:
    """The adapter of a case, or None when nothing here answers to its function."""
    found = ADAPTERS.get(case.function)
    return found or next((value for prefix, value in PREFIXES.items() if case.function.startswith(prefix)), None)
