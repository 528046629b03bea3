"""From rewards to advantages in the order of a step: KL in the reward, rollout correction, advantage; ragged in and out."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from asyncrl.algorithms.kl_in_reward import AdaptiveKL, FixedKL, kl_controller, penalised_rewards
from asyncrl.algorithms.rollout_correction import RolloutCorrectionOptions, rollout_correction
from asyncrl.metrics import scalars
from tests.goldens.advantages import Rows, estimate, options, sessions
from tests.goldens.case import Adapter, Answer, Case, tensor


def pad(rows: list[Tensor]) -> Tensor:
    """Rows of unequal length as one tensor, zeros on the right."""
    return torch.nn.utils.rnn.pad_sequence(rows, batch_first=True)


def controller_of(params: Mapping[str, Any]) -> FixedKL | AdaptiveKL:
    """The controller that a case describes."""
    return kl_controller(params["type"], params["kl_coef"], params.get("target_kl", 0.1), params.get("horizon", 10000))


def correction_options(params: Mapping[str, Any]) -> RolloutCorrectionOptions:
    """The options of ours that a case names."""
    return RolloutCorrectionOptions(**{name: value for name, value in params.items() if name in RolloutCorrectionOptions.__slots__})


def compute_advantage(case: Case) -> Answer:
    """The whole stage."""
    params, inputs = case.params, case.inputs
    of = {name: pad([tensor(row, case.dtype) for row in rows]) for name, rows in inputs.items() if name != "keys"}
    fields: dict[str, Tensor] = {}
    metrics: dict[str, float] = {}
    rewards, beta = of["rm_scores"], controller_of(params["kl_ctrl"])
    if params["use_kl_in_reward"]:
        names = ("old_log_probs", "ref_log_prob", "response_mask")
        rewards, found = penalised_rewards(
            rewards, *(of[name] for name in names), coefficient=beta.coefficient, kl_type=params["kl_penalty"]
        )
        beta = beta.updated(found["actor/reward_kl_penalty"].value(), len(rewards))
        metrics |= scalars(found)
        fields["token_level_rewards"] = rewards
    mask, correction = of["response_mask"], params["rollout_correction"]
    if correction is not None and not correction["bypass_mode"]:
        corrected = rollout_correction(
            of["old_log_probs"], of["rollout_log_probs"], mask, correction_options(correction), count_empty_rows=True
        )
        mask = fields["response_mask"] = corrected.response_mask
        metrics |= scalars(corrected.metrics)
        if corrected.rollout_is_weights is not None:
            fields["rollout_is_weights"] = corrected.rollout_is_weights
    groups, session, index = sessions(inputs["keys"])
    values = {"values": of["values"]} if "values" in of else {}
    rows = Rows(rewards, mask, groups, values, session, index)
    name = params["adv_estimator"]
    fields |= estimate(name, rows, options(params), last_votes=name == "grpo")
    lengths = [len(row) for row in inputs["response_mask"]]
    ragged = {name: [row[:length] for row, length in zip(field, lengths, strict=True)] for name, field in fields.items()}
    return {"fields": ragged, "metrics": metrics, "kl_coef_after": beta.coefficient}


PIPELINE: dict[str, Adapter] = {"v1_compute_advantage": compute_advantage}
