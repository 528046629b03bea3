"""How the recorded advantage estimators are called here."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from asyncrl.algorithms.advantages import (
    ESTIMATORS,
    AdvantageOptions,
    OutcomeEstimator,
    OutcomeRows,
    TokenRows,
    multi_output,
)
from asyncrl.algorithms.advantages.trl import leave_one_out, scaled_advantages
from asyncrl.algorithms.losses import POLICY_LOSSES
from asyncrl.algorithms.masked import over_tokens
from asyncrl.algorithms.rollout_correction.options import RS_CRITERIA
from asyncrl.trajectory import TrajectoryKey
from tests.goldens.case import Adapter, Answer, Case, NotCovered, tensor


def numbers(labels: Sequence[Any]) -> Tensor:
    """Labels as numbers, equal for equal labels."""
    known = {label: number for number, label in enumerate(dict.fromkeys(labels))}
    return torch.tensor([known[label] for label in labels], dtype=torch.int64)


def sessions(keys: Sequence[str]) -> tuple[Tensor, Tensor, Tensor]:
    """Groups, sessions and indices from ``{uid}_{session}_{index}``; a uid of verl may hold underscores, ours may not."""
    split = [key.rsplit("_", 2) for key in keys]
    uids = numbers([pieces[0] for pieces in split]).tolist()
    parts = [TrajectoryKey.parse("_".join([f"u{uid}", *pieces[1:]])) for uid, pieces in zip(uids, split, strict=True)]
    return (
        torch.tensor(uids, dtype=torch.int64),
        numbers([part.session for part in parts]),
        torch.tensor([part.index for part in parts], dtype=torch.int64),
    )


def options(params: Mapping[str, Any]) -> AdvantageOptions:
    """The options under their names here."""
    named = {
        "gamma": "gamma",
        "lam": "lam",
        "norm_adv_by_std_in_grpo": "normalise_by_std",
        "epsilon": "epsilon",
        "handle_zero_tail": "handle_zero_tail",
    }
    return AdvantageOptions(**{ours: params[theirs] for theirs, ours in named.items() if params.get(theirs) is not None})


@dataclass(frozen=True)
class Rows:
    """What a case gives of its rows: padded, [N, R]."""

    rewards: Tensor
    mask: Tensor
    groups: Tensor
    fields: Mapping[str, Tensor]
    sessions: Tensor | None = None
    indices: Tensor | None = None


def estimate(name: str, rows: Rows, given: AdvantageOptions, *, last_votes: bool = False) -> Answer:
    """Advantages and returns of any estimator; with ``last_votes`` as verl lets sessions vote."""
    if name not in ESTIMATORS:
        raise NotCovered(f"estimator {name}")
    estimator = ESTIMATORS[name]
    if isinstance(estimator, OutcomeEstimator):
        lengths = rows.mask.bool().sum(-1)
        outcome = OutcomeRows(rows.rewards.sum(-1), rows.groups, lengths, rows.sessions, rows.indices)
        voted = multi_output(estimator, "last" if last_votes else "all", minimum_votes=1, void_masked=last_votes)
        advantages = over_tokens(voted(outcome, given), rows.mask)
        return {"advantages": advantages, "returns": advantages}
    fields: dict[str, Any] = dict(rows.fields)
    found = estimator(TokenRows(rows.rewards, rows.mask, rows.groups, **fields), given)
    return {"advantages": found.advantages, "returns": found.returns}


def _fields(case: Case) -> dict[str, Tensor]:
    named = {"values": "values", "reward_baselines": "baselines", "old_log_probs": "old_log_probs", "sum_pi_squared": "sum_pi_squared"}
    named["rollout_is_weights"] = "rollout_is_weights"
    return {ours: case.tensor(theirs) for theirs, ours in named.items() if case.inputs.get(theirs) is not None}


def advantage(case: Case) -> Answer:
    """An estimator over rows that all vote."""
    labels = case.inputs.get("uid") or list(range(len(case.inputs["response_mask"])))
    rows = Rows(case.tensor("token_level_rewards"), case.tensor("response_mask"), numbers(labels), _fields(case))
    return estimate(case.function.removeprefix("advantage."), rows, options(case.params))


def gdpo_components(case: Case) -> Answer:
    """GDPO over named components."""
    keys, mask = case.params["keys"], case.tensor("response_mask")
    components = {name: tensor(case.inputs["reward_components"][name], case.dtype) for name in keys}
    rows = OutcomeRows(
        torch.stack(list(components.values())).sum(0), numbers(case.inputs["uid"]), mask.bool().sum(-1), components=components
    )
    weights = case.params["weights"] or [1.0] * len(keys)
    given = replace(options(case.params), components=tuple(zip(keys, weights, strict=True)))
    estimator = ESTIMATORS["gdpo"]
    assert isinstance(estimator, OutcomeEstimator)
    advantages = over_tokens(estimator(rows, given), mask)
    return {"advantages": advantages, "returns": advantages}


def multiple_outputs(case: Case) -> Answer:
    """verl's rule: grpo hears the last output of a session, every other estimator hears all."""
    name = case.function.removeprefix("multi_output.")
    groups, session, index = sessions(case.inputs["keys"])
    rows = Rows(case.tensor("token_level_rewards"), case.tensor("response_mask"), groups, _fields(case), session, index)
    return estimate(name, rows, options(case.params), last_votes=name == "grpo")


def names(case: Case) -> Answer:
    """The names that exist here, by section."""
    return {
        "adv_estimators": list(ESTIMATORS),
        "policy_losses": list(POLICY_LOSSES),
        "rollout_rs_options": RS_CRITERIA,
    }


def check_names(case: Case, answer: Answer) -> None:
    """Every recorded name exists here."""
    missing = {section: sorted(set(case.outputs[section]) - set(known)) for section, known in answer.items()}
    assert not any(missing.values()), f"names that do not exist here: {missing}"


ADVANTAGES: dict[str, Adapter] = {"advantage.gdpo_components": gdpo_components, "advantage.registry": names}
ADVANTAGES_BY_PREFIX: dict[str, Adapter] = {"advantage.": advantage, "multi_output.": multiple_outputs}
"""By the beginning of the function's name."""


def trl_advantages(case: Case) -> Answer:
    """TRL's rows lie group by group, ``num_generations`` to a group."""
    rewards, params = case.tensor("rewards_per_func"), case.params
    found = scaled_advantages(
        rewards,
        tensor(params["reward_weights"], case.dtype),
        torch.arange(len(rewards)) // params["num_generations"],
        scale=params["scale_rewards"],
        aggregation=params["multi_objective_aggregation"],
    )
    return {"advantages": found.advantages, "std_rewards": found.deviation, "is_std_zero": found.zero_spread}


def trl_leave_one_out(case: Case) -> Answer:
    """TRL's RLOO."""
    rewards = case.tensor("rewards")
    groups = torch.arange(len(rewards)) // case.params["num_generations"]
    return {"advantages": leave_one_out(rewards, groups, normalize=case.params["normalize_advantages"])}


TRL_ADVANTAGES: dict[str, Adapter] = {"trl_advantages": trl_advantages, "trl_rloo_advantages": trl_leave_one_out}
