"""How the recorded KL estimates and KL controllers are called here."""

import torch
from torch import Tensor

from asyncrl.algorithms.kl import K3_BOUND, LOG_RATIO_BOUND, kl_penalty
from asyncrl.algorithms.kl_in_reward import AdaptiveKL, FixedKL, penalised_rewards
from asyncrl.metrics import scalars
from tests.goldens.case import Adapter, Answer, Case, tensor
from tests.goldens.pipeline import controller_of


def penalty(case: Case) -> Answer:
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
    beta: FixedKL | AdaptiveKL = controller_of(params)
    values = []
    for current, rows in zip(case.inputs.get("current_kl", [0.0]), case.inputs.get("n_steps", [0]), strict=True):
        beta = beta.updated(current, rows)
        values.append(beta.coefficient)
    return {"values_after_each_update": values}


def apply_kl_penalty(case: Case) -> Answer:
    beta, answers = controller_of(case.params["kl_ctrl"]), []
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


KL: dict[str, Adapter] = {"kl_penalty": penalty, "kl_controller": controller, "apply_kl_penalty": apply_kl_penalty}
