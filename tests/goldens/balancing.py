"""The cases of sequence-length balancing, where another answer than the recorded one may be as good."""

from collections.abc import Callable
from typing import Any

from asyncrl.algorithms.balance import balance_groups, balance_metrics, batch_multiple, karmarkar_karp, row_workload
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
    "workload": workload,
    "seqlen_unbalance_metrics": unbalance,
    "batch_multiple": multiple,
}
CHECKS: dict[str, Callable[[Case, Any], None]] = {
    "balanced_partitions": check_partitions,
    "group_balanced_partitions": check_partitions,
}
