"""Whole runs of the three modes in virtual time: bounded staleness, exact accounting, and never stuck."""

import pytest

from asyncrl.runtime.simulation import Simulation
from asyncrl.trainer.sampler import STALE, AsyncSampler
from tests.simulation.modes_world import Plan, Result, check, play

SEEDS = 60
"""Seeds of the suite; ``faults`` plays a thousand."""


def run(seed: int) -> Result:
    simulation = Simulation(seed)
    plan = Plan.draw(seed)

    async def main() -> Result:
        return await play(simulation, plan)

    return simulation.run(main)


@pytest.mark.parametrize("seed", range(SEEDS))
def test_a_run_trains_every_step_within_its_bounds(seed: int) -> None:
    check(run(seed))


@pytest.mark.faults
@pytest.mark.timeout(1200)
def test_a_thousand_runs_stay_within_their_bounds() -> None:
    play_all(1000)


def test_a_seed_gives_the_same_run_again() -> None:
    first, second = run(3), run(3)
    assert (first.trained, first.staleness, first.said) == (second.trained, second.staleness, second.said)


def test_without_the_check_of_the_threshold_runs_train_what_is_too_old(monkeypatch: pytest.MonkeyPatch) -> None:
    shipped = AsyncSampler._unwanted
    monkeypatch.setattr(AsyncSampler, "_unwanted", lambda self, group, step: (reason := shipped(self, group, step)) != STALE and reason)
    with pytest.raises(AssertionError):
        play_all()


def play_all(seeds: int = SEEDS) -> None:
    for seed in range(seeds):
        check(run(seed))
