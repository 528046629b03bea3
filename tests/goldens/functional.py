"""How the recorded small functions are called here: logits, masks, learning rates."""

from typing import Any

import torch

from asyncrl.algorithms.aggregation import Denominators, aggregate
from asyncrl.algorithms.logprobs import entropy_from_logits, log_probs_from_logits, sum_pi_squared_from_logits
from asyncrl.algorithms.masked import masked_mean, masked_sum, masked_variance, masked_whiten, until_end
from asyncrl.training.optimizer import OptimizerConfig, lr_factor
from tests.goldens.case import Adapter, Answer, Case, tensor


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


def response_mask(case: Case) -> Answer:
    ends = case.params["eos_token_id"]
    return {"mask": until_end(case.tensor("response_ids", torch.int64), [ends] if isinstance(ends, int) else ends)}


def learning_rates(case: Case) -> Answer:
    params = case.params
    config = OptimizerConfig(
        lr=params["base_lr"],
        lr_scheduler_type=params["kind"],
        lr_warmup_steps=params["num_warmup_steps"],
        total_training_steps=params["num_training_steps"],
        **{name: params[name] for name in ("min_lr_ratio", "num_cycles", "stable_ratio") if name in params},
    )
    return {"lr_at_step": [config.lr * lr_factor(step, config) for step in range(len(case.outputs["lr_at_step"]))]}


FUNCTIONAL: dict[str, Adapter] = {
    "logits": logits,
    "response_log_probs_shift": response_log_probs,
    "masked_ops": masked_ops,
    "response_mask_from_eos": response_mask,
    "lr_schedule": learning_rates,
}
