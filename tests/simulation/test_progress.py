"""A run that gets nowhere ends with the line that says why; one that gets on, however slowly, ends as every other."""

import asyncio
from random import Random
from typing import Literal

import pytest

from asyncrl.errors import RunFailed
from asyncrl.runtime.simulation import Simulation
from asyncrl.trainer.sampler import AsyncSampler, GroupFilter, Sampler, SyncSampler
from asyncrl.trainer.schedule import Schedule
from tests.simulation.modes_world import Plan, Result, check, play

BATCH = 2
AHEAD = 1.0
MOST = {"sync": BATCH, "async": 2 * BATCH}
"""Prompts that may be in flight."""
LIMIT = {mode: 8 * most for mode, most in MOST.items()}
"""Issues in a row that may be in vain."""
HOURS = 100 * 3600.0
"""Virtual seconds within which every run must have ended."""

Otherwise = Literal["alike", "failed", "silent"]


def plan(
    mode: str, otherwise: Otherwise, good: set[int], *, steps: int = 2, seed: int = 1, most_batches: int = 0, updates: int = 1
) -> Plan:
    """A run in which the prompts ``good`` alone give groups that can be trained; ``otherwise`` says what the others do."""
    filtered = otherwise == "alike"
    sampler: Sampler = SyncSampler(refill_failed=True, filter=GroupFilter(2, most_batches) if filtered else None)
    schedule = Schedule(updates=updates)
    if mode == "async":
        schedule = Schedule(lookahead=AHEAD, training_window="pause", whole_groups=True, updates=updates)
        sampler = AsyncSampler(threshold=None, filter=filtered, max_batches=most_batches)
    return Plan(
        seed=seed,
        schedule=schedule,
        sampler=sampler,
        threshold=None,
        batch=BATCH,
        steps=steps,
        failing=0.0,
        alike=0.0,
        deaths=0.0,
        lease=60.0 if otherwise == "silent" else 3600.0,
        agents=2,
        good=good.__contains__,
        otherwise=otherwise,
        most_batches=most_batches,
    )


def run(made: Plan) -> Result:
    simulation = Simulation(made.seed)

    async def main() -> Result:
        async with asyncio.timeout(HOURS):
            return await play(simulation, made)

    return simulation.run(main)


@pytest.mark.parametrize("waiting", [0, 1])
@pytest.mark.parametrize("otherwise", ["alike", "failed", "silent"])
@pytest.mark.parametrize("mode", ["sync", "async"])
def test_a_run_that_can_train_nothing_more_ends_also_while_good_groups_wait(mode: str, otherwise: Otherwise, waiting: int) -> None:
    reason = {"alike": "zero spread", "failed": "failed", "silent": "set aside"}[otherwise]
    said = rf"step 1 cannot fill the batch: {waiting} of 2 groups, .*; dropped: \d+ {reason}; \d+ issues in a row gave no group"
    with pytest.raises(RunFailed, match=said):
        run(plan(mode, otherwise, set(range(waiting))))


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_a_step_of_several_local_updates_trains_what_is_good_and_ends_when_nothing_more_is(mode: str) -> None:
    check(run(plan(mode, "alike", set(range(0, 60, 4)), updates=2)))
    waiting = "1 of 2" if mode == "sync" else "0 of 1"
    with pytest.raises(RunFailed, match=rf"step 1 cannot fill the batch: {waiting} groups, .*; \d+ issues in a row gave no group"):
        run(plan(mode, "alike", {3}, updates=2))


def rare(seed: int, gap: int, groups: int) -> set[int]:
    """Numbers of good prompts, each at most ``gap`` after the one before, and often by so many."""
    rng, found = Random(f"good {seed}"), [0]
    while len(found) < groups:
        found.append(found[-1] + rng.choice((gap, rng.randint(1, gap))))
    return set(found)


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("otherwise", ["alike", "failed"])
@pytest.mark.parametrize("mode", ["sync", "async"])
def test_a_run_ends_normally_as_long_as_no_more_issues_in_a_row_are_in_vain_than_may_be(mode: str, otherwise: Otherwise, seed: int) -> None:
    # However long the good ones take: some take forty times as long as the others.
    good = rare(seed, LIMIT[mode] + 1, 20)
    check(run(plan(mode, otherwise, good, seed=seed)))


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_a_step_may_need_as_many_prompts_as_the_user_says_and_no_more(mode: str) -> None:
    # Of 20 batches of 2 prompts the last alone is good. Without a word of the user that is too long a row.
    batches, good = 20, {38, 39}
    assert min(good) > LIMIT[mode]
    check(run(plan(mode, "alike", good, steps=1, most_batches=batches)))
    with pytest.raises(RunFailed, match=r"step 1: 0 of 2 groups .* after 38 prompts \(algorithm.filter_groups.max_num_gen_batches = 19\)"):
        run(plan(mode, "alike", good, steps=1, most_batches=batches - 1))


def test_prompts_that_never_end_are_set_aside_and_others_are_trained_in_their_place() -> None:
    result = run(plan("sync", "silent", set(range(10)) - {1, 3}))
    check(result)
    assert result.trained == [["s1e0p0", "s1e0p2"], ["s1e0p4", "s1e0p5"]]
    assert result.ledger.drop_reasons() == {"set aside": 2}
