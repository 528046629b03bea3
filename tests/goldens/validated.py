"""How the recorded validation metrics are called here."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from asyncrl.algorithms.validation_metrics import (
    Answers,
    Bootstrap,
    BySource,
    best_and_worst,
    log_names,
    majority_value,
    validation_metrics,
)
from tests.goldens.case import Adapter, Answer, Case

VOTES = "pred"
"""What a rule says an answer amounts to; its majority is taken."""


def answers(inputs: Mapping[str, Any]) -> Answers:
    """The answers of a case; values that are text are no variables."""
    infos: Mapping[str, Sequence[Any]] = inputs["infos"]
    variables = {name: values for name, values in infos.items() if not any(isinstance(value, str) for value in values)}
    return Answers(inputs["data_sources"], inputs["sample_uids"], variables, infos.get(VOTES))


def _metrics(case: Case) -> BySource:
    counts = case.inputs.get("expected_acc_counts")
    expected = None if counts is None else {(source, uid): count for source, uid, count in counts}
    bootstrap = Bootstrap(case.params["n_bootstrap"], case.params["seed"])
    return validation_metrics(answers(case.inputs), expected=expected, bootstrap=bootstrap)


def process_validation_metrics(case: Case) -> Answer:
    """Numbers without chance, and those of the draws; a part that is empty is not recorded."""
    parts: dict[str, BySource] = {"exact": {}, "bootstrap": {}}
    for source, variables in _metrics(case).items():
        for variable, metrics in variables.items():
            for name, value in metrics.items():
                part = parts["exact" if name.startswith(("mean@", "std@")) else "bootstrap"]
                part.setdefault(source, {}).setdefault(variable, {})[name] = value
    return parts


def validation_log_keys(case: Case) -> Answer:
    """The names under which they are logged."""
    return {"metrics": log_names(_metrics(case), case.inputs["num_turns"])}


def bootstrap_metric(case: Case) -> Answer:
    """Pairs of mean and deviation, by ``seed<s>_n<draws>``."""
    found = {}
    values = np.array([case.inputs["data"]], dtype=np.float64)
    for name in case.outputs:
        seed, draws = (int(part.lstrip("abcdefghijklmnopqrstuvwxyz")) for part in name.split("_"))
        best, worst = best_and_worst(values, case.params["subset_size"], Bootstrap(draws, seed))
        found[name] = {"max": np.concatenate(best), "min": np.concatenate(worst)}
    return found


def majority_of(case: Case) -> Answer:
    """The value of the majority's vote."""
    return {"value": majority_value(case.inputs["votes"], case.inputs["values"])}


VALIDATED: dict[str, Adapter] = {
    "process_validation_metrics": process_validation_metrics,
    "validation_log_keys": validation_log_keys,
    "bootstrap_metric": bootstrap_metric,
    "majority_value": majority_of,
}
