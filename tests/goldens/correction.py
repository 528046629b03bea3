"""How the recorded rollout corrections and off-policy diagnostics are called here."""

import math

import torch

from asyncrl.algorithms.diagnostics import probability_difference
from asyncrl.algorithms.rollout_correction import off_policy_metrics, rollout_correction
from asyncrl.metrics import scalars
from tests.goldens.case import Adapter, Answer, Case
from tests.goldens.pipeline import correction_options


def correction(case: Case) -> Answer:
    """verl counts rows without a trainable token where it averages rows."""
    found = rollout_correction(
        case.tensor("old_log_probs"),
        case.tensor("rollout_log_probs"),
        case.tensor("response_mask"),
        correction_options(case.params),
        count_empty_rows=True,
    )
    answer = {"modified_response_mask": found.response_mask, "metrics": scalars(found.metrics)}
    weights = case.outputs.get("rollout_is_weights")
    assert (weights is None) == (found.rollout_is_weights is None)
    return answer if found.rollout_is_weights is None else {**answer, "rollout_is_weights": found.rollout_is_weights}


def off_policy(case: Case) -> Answer:
    rollout = None if case.inputs["rollout_log_probs"] is None else case.tensor("rollout_log_probs")
    metrics = off_policy_metrics(case.tensor("old_log_probs"), rollout, case.tensor("response_mask"), count_empty_rows=True)
    return {"metrics": {name.removeprefix("rollout_corr/"): value for name, value in scalars(metrics).items()}}


def probs_diff(case: Case) -> Answer:
    mask = case.tensor("response_mask")
    found = scalars(probability_difference(case.tensor("rollout_log_probs"), case.tensor("old_log_probs"), mask))
    return {"metrics": {name: value for name, value in found.items() if not math.isnan(value) or torch.numel(mask) == 0}}


CORRECTION: dict[str, Adapter] = {"rollout_correction": correction, "offpolicy_metrics": off_policy, "rollout_probs_diff": probs_diff}
