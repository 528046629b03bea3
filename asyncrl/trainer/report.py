"""What one step did, in numbers: timings, lengths, rewards, staleness, groups."""

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from asyncrl.algorithms.dynamic_sampling import zero_spread
from asyncrl.algorithms.metric_names import combine_updates
from asyncrl.algorithms.step_metrics import (
    VARIANCE,
    length_metrics,
    reward_metrics,
    share,
    throughput_metrics,
    timing_metrics,
    turn_metrics,
    variance_with_gradient,
    version_metrics,
)
from asyncrl.metrics import Metric, Metrics, merge, scalars, spread
from asyncrl.runtime.host import Host
from asyncrl.trainer.batch import KVBatchMeta
from asyncrl.trainer.learned import Learned
from asyncrl.workers.usage import EngineUsage

Number = float | int | str | list[float]

ADDED = ("training/rows_trained", "training/optimizer_steps", "training/skipped_steps", "training/rollout_failure")
"""Beginnings of the counts of a local update that add up over a step, beside those whose names say so."""
ROLES = ("actor", "critic")
"""The first words of the metrics of an optimizer step."""


@dataclass(frozen=True, slots=True)
class Sample:
    """One sampled answer, to be shown."""

    key: str
    prompt_ids: list[int]
    response_ids: list[int]
    score: float


class StepReport:
    """Collects the numbers of one step; ``numbers`` is what the trackers get."""

    def __init__(self, step: int, host: Host) -> None:
        self.step = step
        self.numbers: dict[str, Number] = {"training/global_step": step}
        self._host = host
        self._began = host.clock()
        self._proxies: Metrics = {}
        self._parts: list[StepReport] = []

    def part(self) -> "StepReport":
        """The report of one local update, for ``join_parts``."""
        self._parts.append(StepReport(self.step, self._host))
        return self._parts[-1]

    def join_parts(self) -> None:
        """Take over the numbers of the local updates, each weighted by its rows where a mean is meant."""
        parts, self._parts = self._parts, []
        names = dict.fromkeys(name for part in parts for name in part.numbers)
        found = {name: [part.numbers[name] for part in parts if name in part.numbers] for name in names}
        lists = {name: [number for value in values if isinstance(value, list) for number in value] for name, values in found.items()}
        plain = [{name: value for name, value in part.numbers.items() if isinstance(value, int | float)} for part in parts]
        rows = [int(numbers.get("training/rows_trained", 0)) for numbers in plain]
        combined: dict[str, Number] = dict(combine_updates(plain, rows))
        combined |= {name: sum(numbers.get(name, 0) for numbers in plain) for name in names if name.startswith(ADDED)}
        mine = {name: value for name, value in self.numbers.items() if name.startswith("timing_s/") and isinstance(value, float)}
        self.numbers |= combined | {name: values for name, values in lists.items() if values}
        self.numbers |= {name: value + sum(numbers.get(name, 0.0) for numbers in plain) for name, value in mine.items()}
        self._proxies = merge([part._proxies for part in parts])

    @contextmanager
    def time(self, stage: str) -> Iterator[None]:
        """Add the seconds of the block to ``timing_s/<stage>``."""
        began = self._host.clock()
        try:
            yield
        finally:
            name = f"timing_s/{stage}"
            spent = self.numbers.get(name, 0.0)
            assert isinstance(spent, float)
            self.numbers[name] = spent + self._host.clock() - began

    def add(self, metrics: Mapping[str, Metric]) -> None:
        """Take over worker metrics as plain numbers."""
        self.numbers |= scalars(metrics)
        self._proxies |= {name: metric for name, metric in metrics.items() if name.startswith(f"{VARIANCE}/")}

    def add_learned(self, learned: Learned) -> None:
        """What a role learned: metrics of its rows, and of its optimizer steps.

        These are lists under ``actor/by_update/*`` or ``critic/by_update/*``, and their join under their own names.
        """
        self.add(learned.metrics)
        self.numbers["training/rows_trained"] = learned.rows
        updates = [scalars(metrics) for metrics in learned.by_update]
        names = dict.fromkeys(name for update in updates for name in update)
        # A step that was left out has no gradient norm, and its place in the list stays NaN.
        series = {name: [update.get(name, math.nan) for update in updates] for name in names}
        for name, values in series.items():
            role, _, rest = name.partition("/")
            if role in ROLES:
                self.numbers[f"{role}/by_update/{rest}"] = values
        self.numbers |= {name: _over_updates(name, values) for name, values in series.items()}

    def series(self, name: str) -> list[float]:
        """One of the lists under ``actor/by_update``; empty when no optimizer step had that metric."""
        found = self.numbers.get(f"actor/by_update/{name}", [])
        assert isinstance(found, list)
        return found

    def add_batch(
        self, batch: KVBatchMeta, rewards: Sequence[float], extras: Sequence[Mapping[str, Any]], prompt_limit: int, response_limit: int
    ) -> None:
        """Rewards, lengths, staleness and groups of the rows that were trained; the limits are the configured lengths."""
        responses, prompts = batch.lengths("response_len"), batch.lengths("prompt_len")
        right = _accuracies(batch.scores, extras)
        self.numbers |= {
            **reward_metrics(batch.scores, rewards, responses),
            **spread("critic/acc", right),
            **length_metrics(prompts, responses, prompt_limit, response_limit),
            **turn_metrics(batch.lengths("num_turns")),
            **_staleness(batch),
            **group_fractions(batch, right),
        }

    def add_usage(self, engines: Sequence[EngineUsage]) -> None:
        """What the engines waited for, and what they gave back for new weights."""
        self.numbers |= {
            **spread("perf/engine_wait_s", [engine.waited for engine in engines]),
            **spread("perf/engine_paused_s", [engine.paused for engine in engines]),
            "training/continued_tokens": sum(engine.given_back for engine in engines),
        }

    def finish(self, batch: KVBatchMeta, ranks: int) -> None:
        """Close the step: its seconds, tokens per second and rank, and the share of every stage."""
        seconds = self._host.clock() - self._began
        tokens = sum(batch.lengths("seq_len"))
        response_tokens = sum(batch.lengths("response_len"))
        stages = {
            name.removeprefix("timing_s/"): value
            for name, value in self.numbers.items()
            if name.startswith("timing_s/") and isinstance(value, float)
        }
        if self._proxies:
            norms = [norm for norm in self.series("grad_norm") if not math.isnan(norm)]
            self.numbers |= scalars(variance_with_gradient(self._proxies, math.fsum(norms) / len(norms) if norms else None))
        self.numbers |= {
            **timing_metrics(stages | {"step": seconds}, tokens, response_tokens),
            **throughput_metrics(tokens, seconds, ranks),
            "perf/response_tokens_per_s": response_tokens / seconds,
            **{f"timing_share/{stage}": spent / seconds for stage, spent in stages.items()},
        }


def group_fractions(batch: KVBatchMeta, right: Sequence[float]) -> dict[str, float]:
    """The fractions of prompt groups without spread, all right and all wrong."""
    scores: dict[int, list[float]] = defaultdict(list)
    answers: dict[int, list[float]] = defaultdict(list)
    for group, score, correct in zip(batch.groups, batch.scores, right, strict=True):
        scores[group].append(score)
        answers[group].append(correct)
    return {
        "training/groups/zero_spread": share([bool(zero_spread(torch.tensor(values))) for values in scores.values()]),
        "training/groups/all_right": share([min(values) >= 1.0 for values in answers.values()]),
        "training/groups/all_wrong": share([max(values) <= 0.0 for values in answers.values()]),
    }


def _accuracies(scores: Sequence[float], extras: Sequence[Mapping[str, Any]]) -> list[float]:
    return [float(extra.get("acc", score)) for score, extra in zip(scores, extras, strict=True)]


def _staleness(batch: KVBatchMeta) -> dict[str, float]:
    """Versions and staleness of the rows that hold a policy token; verl's definitions, with the worst beside the mean."""
    spans = [(int(tag["min_global_steps"]), int(tag["max_global_steps"])) for tag in batch.tags if int(tag["max_global_steps"]) >= 0]
    return {
        **spread("training/rollout_version", [version for span in spans for version in span]),
        **version_metrics([oldest for oldest, _ in spans], [newest for _, newest in spans], batch.step),
    }


def _over_updates(name: str, found: Sequence[float]) -> float:
    """One number for all optimizer steps of a step: the largest of a maximum, the last learning rate, else the mean."""
    values = [value for value in found if not math.isnan(value)]
    if not values:
        return math.nan
    if name.endswith(("_max", "/max")):
        return max(values)
    if name.endswith("/lr"):
        return values[-1]
    if name.startswith("training/"):
        return math.fsum(values)
    return math.fsum(values) / len(values)
