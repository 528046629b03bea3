"""The restart budget: how often, within which time, and which end is told at last."""

import pytest
from hypothesis import given, settings, strategies as st

from asyncrl.runtime.restarts import Ending, RestartBudget, Verdict
from asyncrl.runtime.supervisor_messages import ProcessDeath


def ending(name: str) -> Ending:
    return Ending(name, [f"last words of {name}"])


def test_without_restarts_the_first_end_is_final() -> None:
    assert RestartBudget(0, 60.0).ended(5.0, ending("a")) == Verdict(False, 0, ending("a"))


def test_one_end_more_than_the_budget_is_final_and_the_first_one_is_its_cause() -> None:
    budget = RestartBudget(3, 60.0)
    verdicts = [budget.ended(at, ending(name)) for at, name in [(0.0, "a"), (10.0, "b"), (20.0, "c"), (59.9, "d")]]
    assert [verdict.restarting for verdict in verdicts] == [True, True, True, False]
    assert verdicts[-1] == Verdict(False, 3, ending("a"))


def test_an_end_that_is_a_window_old_does_not_count_any_more() -> None:
    budget = RestartBudget(1, 60.0)
    assert budget.ended(0.0, ending("a")).restarting
    assert budget.ended(60.0, ending("b")) == Verdict(True, 0, ending("b"))
    assert budget.ended(119.0, ending("c")) == Verdict(False, 1, ending("b"))


@settings(max_examples=50)
@given(st.integers(0, 4), st.lists(st.integers(0, 30), max_size=25))
def test_never_more_restarts_than_the_limit_in_any_window(limit: int, gaps: list[int]) -> None:
    budget, now = RestartBudget(limit, 60.0), 0
    restarts: list[int] = []
    for gap in gaps:
        now += gap
        verdict = budget.ended(float(now), ending(str(now)))
        recent = [at for at in restarts if now - at < 60]
        assert verdict.restarts == len(recent)
        assert verdict.restarting == (len(recent) < limit)
        assert verdict.first.exit == str(recent[0] if recent else now)
        if not verdict.restarting:
            break
        restarts.append(now)


@pytest.mark.parametrize(("limit", "window"), [(-1, 60.0), (1, 0.0)])
def test_a_budget_that_makes_no_sense_is_refused(limit: int, window: float) -> None:
    with pytest.raises(ValueError, match="a budget has at least 0 restarts"):
        RestartBudget(limit, window)


def test_a_death_tells_its_own_end_or_that_restarts_did_not_help() -> None:
    alone = ProcessDeath("p", 1, "exit code 1", ["x"])
    assert (alone.cause, alone.cause_lines) == ("exit code 1", ["x"])
    followed = ProcessDeath("p", 1, "exit code 1", ["x"], restarting=True, restarts=2)
    assert followed.cause == "exit code 1"
    last = ProcessDeath("p", 1, "exit code 1", ["x"], restarts=3, first=ending("signal 9 (SIGKILL)"))
    assert last.cause == "signal 9 (SIGKILL) (restarts that did not help: 3; the last life: exit code 1)"
    assert last.cause_lines == ["last words of signal 9 (SIGKILL)"]
