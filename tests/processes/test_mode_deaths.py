"""kill -9 of an agent, a reward worker, a shard or an engine in the middle of generation: nothing is lost, nothing trained twice.

Answers are drawn from (seed, uid, session) beforehand, so that what a prompt must be trained with is known, whoever sampled it.
"""

import math
from pathlib import Path

import pytest

from tests.processes.death_runs import HEAD, DeathReport, DeathRun, make_run, pooled
from tests.processes.killer import Kill
from tests.processes.kolmogorov import distance, p_value, tail

SOON = (
    DeathRun(1, "colocate_async", 2, 0, (Kill("agent-0", 2), Kill("agent-1", 3, partition="val"), Kill("reward-1", 5), Kill("shard-0", 6))),
    DeathRun(2, "separate_async", 1, 1, (Kill("engine-0", 3), Kill("shard-1", 6), Kill("agent-0", 7, partition="val"))),
)
"""The runs of the suite: seven kills, one of each kind at least, two of them in a validation."""
SEEDS = range(101, 121)
KILLS = 2
"""In each of the runs of ``make faults``."""


@pytest.mark.timeout(300)
@pytest.mark.parametrize("run", SOON, ids=["colocate_async", "separate_async"])
def test_a_run_survives_the_kills_of_its_processes_and_trains_every_prompt_once(run: DeathRun, tmp_path: Path) -> None:
    report = make_run(run, tmp_path)
    print(f"{HEAD}\n{report.line()}")


@pytest.mark.faults
@pytest.mark.timeout(5000)
def test_twenty_runs_with_random_kills_train_every_prompt_once_and_long_answers_as_often_as_short_ones(tmp_path: Path) -> None:
    reports: list[DeathReport] = []
    failures: list[str] = []
    for seed in SEEDS:
        run = DeathRun.drawn(seed, KILLS)
        try:
            reports.append(make_run(run, tmp_path / f"seed{seed}"))
        except AssertionError as error:
            failures.append(f"{run}: {error}")
    issued, trained = pooled(reports)
    p = p_value(issued, trained)
    print("\n".join([HEAD, *(report.line() for report in reports)]))
    print(f"lengths of {len(issued)} issued and {len(trained)} trained answers: D = {distance(issued, trained):.4f}, p = {p:.3f}")
    assert not failures, "\n\n".join(failures)
    assert p > 0.01
    # What is looked for would be seen: without the longest tenth they are told apart.
    assert p_value(issued, sorted(trained)[: len(trained) * 9 // 10]) < 0.01


def test_the_distance_of_two_samples_is_the_largest_difference_of_their_distributions() -> None:
    assert distance([1, 2, 3, 4], [1, 2, 3, 4]) == 0
    assert distance([1, 2], [3, 4]) == 1
    # After 1: 1/2 and 0. After 2: 1/2 and 2/3. After 5: 1 and 2/3.
    assert distance([1, 5], [2, 2, 7]) == 0.5
    assert distance([1, 1, 2], [1, 2, 2]) == pytest.approx(1 / 3)


def test_the_tail_is_that_of_the_printed_tables() -> None:
    # Critical values of Kolmogorov's distribution at 10, 5 and 1 percent, to three digits.
    assert [round(tail(value), 3) for value in (1.224, 1.358, 1.628)] == [0.1, 0.05, 0.01]
    # The first term alone is right to nine digits at 2: the second is exp(-32).
    assert tail(2.0) == pytest.approx(2 * math.exp(-8), rel=1e-9)
    assert tail(0.1) == 1.0


def test_samples_that_differ_are_told_apart_and_equal_ones_are_not() -> None:
    sample = list(range(1000))
    assert p_value(sample, sample) == 1.0
    assert p_value(sample, [value + 20 for value in sample]) > 0.5
    assert p_value(sample, [value + 100 for value in sample]) < 1e-3
