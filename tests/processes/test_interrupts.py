"""Ctrl-C and SIGTERM: everything ends soon, and the signal is the cause."""

import os
import signal
from pathlib import Path

import pytest

from tests.processes.launching import torchrun
from tests.processes.live_run import live_run

LIMIT = 30.0
"""Three times the promise."""


@pytest.mark.timeout(120)
@pytest.mark.parametrize("number", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.faults)], ids=lambda number: number.name)
def test_a_signal_to_the_foreground_group_ends_the_job_and_is_named(number: signal.Signals, tmp_path: Path) -> None:
    with live_run(tmp_path, "trainer.total_training_steps=5000") as run:
        run.wait_for_step()
        os.killpg(run.process.pid, number)
        took = run.seconds_to_end(LIMIT)
        print(f"{number.name}: all gone after {took:.2f} s")
        assert run.process.returncode != 0
        run.check_cause(f"stopped by {number.name}")
        run.check_nothing_left()


@pytest.mark.faults
@pytest.mark.timeout(120)
def test_an_interrupt_reaches_a_rank_that_is_blocked_on_its_device_thread(tmp_path: Path) -> None:
    with live_run(tmp_path, command=torchrun(2, "tests.processes.failing_rank", "blocked")) as run:
        run.wait_for_line(lambda line: line == "blocked")
        os.killpg(run.process.pid, signal.SIGINT)
        took = run.seconds_to_end(LIMIT)
        print(f"SIGINT with a blocked rank 0: all gone after {took:.2f} s")
        run.check_cause("stopped by SIGINT")
        run.check_nothing_left()
