"""How the recorded step metrics are called here."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor

from asyncrl.algorithms.metric_names import combine_updates, reduce_by_name
from asyncrl.algorithms.step_metrics import (
    length_metrics,
    reward_metrics,
    throughput_metrics,
    timing_metrics,
    token_metrics,
    turn_metrics,
    value_metrics,
    variance_proxies,
    variance_with_gradient,
    version_metrics,
)
from asyncrl.metrics import Max, Mean, Metric, Min, Sum, merge, scalars
from tests.goldens.case import Adapter, Answer, Case, tensor
from tests.goldens.pipeline import pad

TOKEN_FIELDS = ("advantages", "returns")


def _row_metrics(
    scores: Sequence[float], rewards: Sequence[float], lengths: Mapping[str, Sequence[int]], limits: tuple[int, int]
) -> dict[str, float]:
    prompts, responses = lengths["prompt"], lengths["response"]
    return {
        **reward_metrics(scores, rewards, responses),
        **length_metrics(prompts, responses, *limits),
        **turn_metrics(lengths["turns"]),
    }


def _token_metrics(fields: Mapping[str, Tensor], mask: Tensor, use_critic: bool) -> dict[str, float]:
    parts = [token_metrics(f"critic/{name}", fields[name], mask) for name in TOKEN_FIELDS]
    if use_critic:
        parts.append(value_metrics(fields["values"], fields["returns"], mask))
    return scalars(merge(parts))


def data_metrics(case: Case) -> Answer:
    """Metrics of a padded batch; ``training/num_turns`` is not among those recorded here."""
    inputs, params = case.inputs, case.params
    sums = [case.tensor(name).sum(-1).tolist() for name in ("token_level_scores", "token_level_rewards")]
    lengths = {"prompt": inputs["prompt_lengths"], "response": inputs["response_lengths"], "turns": inputs["num_turns"]}
    rows = _row_metrics(sums[0], sums[1], lengths, (params["max_prompt_length"], params["max_response_length"]))
    fields = {name: case.tensor(name) for name in (*TOKEN_FIELDS, "values") if name in inputs}
    metrics = rows | _token_metrics(fields, case.tensor("response_mask"), params["use_critic"])
    return {"metrics": {name: value for name, value in metrics.items() if not name.startswith("training/")}}


def step_metrics(case: Case) -> Answer:
    """A whole step of ragged rows. Padding rows are not passed; the configured limits, which are not recorded, are 0 here."""
    params = case.params
    rows = [row for row in case.inputs["rows"] if not row["is_padding"]]
    lengths = {
        name: [row[field] for row in rows]
        for name, field in (("prompt", "prompt_length"), ("response", "response_length"), ("turns", "num_turns"))
    }
    scores = [math.fsum(row["rm_scores"]) for row in rows]
    names = (*TOKEN_FIELDS, "values") if params["use_critic"] else TOKEN_FIELDS
    fields = {name: pad([tensor(row[name], case.dtype) for row in rows]) for name in (*names, "response_mask")}
    response_tokens = sum(lengths["response"])
    tokens = sum(lengths["prompt"]) + response_tokens
    seconds = case.inputs["timing_raw"]
    metrics = {
        **_row_metrics(scores, scores, lengths, (0, 0)),
        **_token_metrics(fields, fields["response_mask"], params["use_critic"]),
        **version_metrics([row["min_global_steps"] for row in rows], [row["max_global_steps"] for row in rows], params["global_steps"]),
        **timing_metrics(seconds, tokens, response_tokens),
        **throughput_metrics(tokens, seconds["step"], params["n_gpus"]),
        "training/global_step": params["global_steps"],
        "training/epoch": params["epoch"],
    }
    return {"metrics": metrics}


def timings(case: Case) -> Answer:
    """Times per token and throughput."""
    response_tokens, seconds = sum(case.inputs["response_lengths"]), case.inputs["timing_raw"]
    tokens = sum(case.inputs["prompt_lengths"]) + response_tokens
    return {
        "timing": timing_metrics(seconds, tokens, response_tokens),
        "throughput": throughput_metrics(tokens, seconds["step"], case.params["n_gpus"]),
    }


def variances(case: Case) -> Answer:
    """The proxies of the variance of the gradient."""
    proxies = variance_proxies(
        case.tensor("advantages"),
        case.tensor("old_log_probs"),
        case.tensor("sum_pi_squared"),
        case.tensor("response_mask"),
        case.tensor("rollout_is_weights") if "rollout_is_weights" in case.inputs else None,
    )
    return {"metrics": scalars(variance_with_gradient(proxies, case.params["gradient_norm"]))}


def reduced(case: Case) -> Answer:
    """Values of each name as one."""
    return {"reduced": {name: reduce_by_name(name, values) for name, values in case.inputs["metrics"].items()}}


def joined(case: Case) -> Answer:
    """The metric kinds over the values of one rank and of all.

    A sum is averaged over ranks by verl, whose ranks scale what they sum by their number; here the shares add up as they are.
    """
    found: dict[str, Any] = {}
    per_rank = case.inputs["per_rank_values"]
    for name, made in KINDS.items():
        ranks = [merge([{name: made(value)} for value in values]) for values in per_rank]
        whole = scalars(merge(ranks))[name]
        found[name] = {"rank0": scalars(ranks[0])[name], "across_dp": whole / len(per_rank) if name == "sum" else whole}
    return found


def _mean(value: float) -> Metric:
    return Mean(value, 1.0)


KINDS: dict[str, Any] = {"mean": _mean, "sum": Sum, "max": Max, "min": Min}


def aggregated(case: Case) -> Answer:
    """Several local updates as one step."""
    return {"aggregated": combine_updates(case.inputs["steps"], case.inputs["sample_counts"])}


REPORTED: dict[str, Adapter] = {
    "data_metrics": data_metrics,
    "v1_step_metrics": step_metrics,
    "timing_metrics": timings,
    "variance_proxy_metrics": variances,
    "reduce_metrics": reduced,
    "metric_aggregation": joined,
    "metrics_aggregator": aggregated,
}
