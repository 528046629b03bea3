"""Runs of actor systems under faults, each drawn from one seed: every promise of the runtime holds at the end."""

import os

import pytest

from tests.simulation.scenario import Scenario

COUNT = 300


def chosen() -> list[int]:
    """All seeds of the suite, or the one that ASYNCRL_SEED names."""
    return [int(os.environ["ASYNCRL_SEED"])] if "ASYNCRL_SEED" in os.environ else list(range(COUNT))


@pytest.mark.parametrize("seed", chosen())
def test_all_promises_hold_for_seed(seed: int) -> None:
    scenario = Scenario(seed)
    problems = scenario.run()
    assert not problems, scenario.report(problems)


@pytest.mark.faults
@pytest.mark.timeout(7200)
def test_all_promises_hold_for_thousands_of_seeds() -> None:
    for seed in range(COUNT, COUNT + int(os.environ.get("ASYNCRL_SEEDS", "5000"))):
        scenario = Scenario(seed)
        problems = scenario.run()
        assert not problems, scenario.report(problems)
