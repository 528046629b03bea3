"""A run that a signal stops between two updates saves the last step that it has trained."""

from pathlib import Path

import pytest

from tests.processes.job_kill import KILLED_AT, check_accounts, final_state, go_on, launch, same_bits

pytestmark = [pytest.mark.faults, pytest.mark.timeout(400)]
SELDOM = "trainer.save_freq=100"
"""No checkpoint but the one of the exit, and that of the last step."""


def interrupted(folder: Path, mode: str, point: str) -> None:
    stopped = launch(folder, mode, point, SELDOM)
    assert stopped.returncode != 0
    assert "asyncrl: stopped by SIGINT" in stopped.stderr, stopped.stderr[-3000:]


def test_after_learn_in_sync_nothing_is_learned_again_and_the_end_is_the_same(tmp_path: Path) -> None:
    whole = launch(tmp_path / "whole", "sync", "never", SELDOM)
    assert whole.returncode == 0, whole.stderr[-3000:]
    interrupted(tmp_path / "run", "sync", "interrupted")
    found = go_on(tmp_path / "run", "sync", SELDOM)
    assert (found.resumed_after, found.learned_again) == (KILLED_AT, [])
    assert same_bits(final_state(tmp_path / "run"), final_state(tmp_path / "whole"))


@pytest.mark.parametrize("mode", ["colocate_async", "separate_async"])
def test_in_generation_nothing_is_learned_or_generated_again(mode: str, tmp_path: Path) -> None:
    interrupted(tmp_path / "run", mode, "interrupted in generation")
    found = go_on(tmp_path / "run", mode, SELDOM)
    assert (found.resumed_after, found.learned_again, found.again) == (KILLED_AT - 1, [], [])
    check_accounts(tmp_path / "run")
