"""The cases of sequence-length balancing, where another answer than the recorded one may be as good."""

from collections.abc import Callable
from typing import Any

from asyncrl.algorithms.balance import (
    balance_groups,
    balance_metrics,
    batch_multiple,
    karmarkar_karp,
    micro_batches,
    places,
    row_workload,
)
from tests.goldens.advantages import check_names
from tests.goldens.case import Adapter, Case


def partitions(case: Case) -> dict[str, Any]:
    return {"partitions": karmarkar_karp(case.inputs["seqlens"], case.params["k"], equal_size=case.params["equal_size"])}


def group_partitions(case: Case) -> dict[str, Any]:
    return {"partitions": balance_groups(case.inputs["seqlens"], case.inputs["uid"], case.params["k"])}


def check_partitions(case: Case, answer: Any) -> None:
    """Every index once, no empty part, equal sizes where asked, and the heaviest part no heavier than recorded."""
    parts, lengths = answer["partitions"], case.inputs["seqlens"]
    assert sorted(index for part in parts for index in part) == list(range(len(lengths)))
    assert len(parts) == case.params["k"]
    assert all(parts)
    if case.params.get("equal_size"):
        assert len({len(part) for part in parts}) == 1
    if "uid" in case.inputs:
        homes = [{case.inputs["uid"][index] for index in part} for part in parts]
        assert sum(map(len, homes)) == len(set(case.inputs["uid"])), "a prompt group is split"
    if "max_over_mean" in case.outputs:
        sums = [sum(lengths[index] for index in part) for part in parts]
        assert max(sums) / (sum(sums) / len(sums)) <= case.outputs["max_over_mean"] + 1e-12


def cut_by_tokens(case: Case) -> dict[str, Any]:
    """Every row once, none over the budget, and the least count that was recorded or fewer."""
    names = {"min_num_micro_batch": "minimum", "num_batches_divided_by": "multiple", "force_group_size": "group_size"}
    options = {ours: case.params[theirs] for theirs, ours in names.items() if case.params.get(theirs) is not None}
    parts = micro_batches(case.inputs["seqlens"], case.params["max_token_len"], **options)
    return {"partitions": parts, "reverse_index": places(parts)}


def check_micro_batches(case: Case, answer: Any) -> None:
    parts, lengths, params = answer["partitions"], case.inputs["seqlens"], case.params
    flat = [index for part in parts for index in part]
    assert sorted(flat) == list(range(len(lengths)))
    assert [flat[place] for place in answer["reverse_index"]] == list(range(len(lengths)))
    assert all(sum(lengths[index] for index in part) <= params["max_token_len"] for part in parts)
    assert len(parts) % params.get("num_batches_divided_by", 1) == 0
    assert params.get("min_num_micro_batch", 1) <= len(parts) <= case.outputs["num_micro_batches"]
    size = params.get("force_group_size", 1)
    homes = {index: number for number, part in enumerate(parts) for index in part}
    assert all(homes[index] == homes[index - index % size] for index in homes), "a group is split"


def workload(case: Case) -> dict[str, Any]:
    return {"workload": [row_workload(length) for length in case.inputs["seqlens"]]}


def unbalance(case: Case) -> dict[str, Any]:
    return {"metrics": balance_metrics(case.inputs["seqlens"], case.inputs["partitions"], case.params["prefix"])}


def multiple(case: Case) -> dict[str, Any]:
    params = case.params
    actor = params["actor_ppo_mini_batch_size"] * params["rollout_n"] if params["critic_warmup"] <= params["global_steps"] else None
    critic = params["critic_ppo_mini_batch_size"]
    return {"multiple": batch_multiple(params["dp_size"], actor, None if critic is None else critic * params["rollout_n"])}


BALANCING: dict[str, Adapter] = {
    "balanced_partitions": partitions,
    "group_balanced_partitions": group_partitions,
    "micro_batches": cut_by_tokens,
    "workload": workload,
    "seqlen_unbalance_metrics": unbalance,
    "batch_multiple": multiple,
}
CHECKS: dict[str, Callable[[Case, Any], None]] = {
    "balanced_partitions": check_partitions,
    "group_balanced_partitions": check_partitions,
    "micro_batches": check_micro_batches,
    "advantage.registry": check_names,
}
