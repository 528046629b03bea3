"""Kill one process of a run: the others end soon, and what died is the first thing said. Who is started again: ``test_mode_deaths``."""

import os
import signal
from pathlib import Path

import pytest

from tests.processes.launching import torchrun
from tests.processes.live_run import live_run

LIMIT = 30.0
"""Three times the promise."""

TWO_RANKS = torchrun(2, "asyncrl.launch")
SOON = ("rank 0", "rank 1", "supervisor", "shard-0")
"""Whom the suite kills; the others die with ``make faults``."""
VICTIMS = (*SOON, *(pytest.param(name, marks=pytest.mark.faults) for name in ("the torchrun agent",)))


@pytest.mark.timeout(120)
@pytest.mark.parametrize("victim", VICTIMS)
def test_a_killed_process_ends_the_job_and_is_named(victim: str, tmp_path: Path) -> None:
    with live_run(tmp_path, "trainer.total_training_steps=5000", command=TWO_RANKS) as run:
        run.wait_for_step()
        pid = run.pid_of(victim)
        os.kill(pid, signal.SIGKILL)
        took = run.seconds_to_end(LIMIT)
        print(f"kill -9 of {victim}: all gone after {took:.2f} s")
        assert run.process.returncode != 0
        run.check_cause(f"{victim} (pid {pid}) died")
        run.check_nothing_left()


@pytest.mark.faults
@pytest.mark.timeout(180)
def test_a_shard_that_keeps_a_journal_is_started_again_and_the_run_goes_on(tmp_path: Path) -> None:
    with live_run(tmp_path, "trainer.total_training_steps=6", "transfer_queue.journal=interval", "trainer.save_freq=-1") as run:
        run.wait_for_step()
        os.kill(run.pid_of("shard-0"), signal.SIGKILL)
        run.seconds_to_end(120.0)
        assert run.process.returncode == 0
        assert "it is started again" in run.output()
        run.check_nothing_left()


@pytest.mark.faults
@pytest.mark.timeout(120)
def test_a_rank_killed_while_the_other_is_blocked_on_its_device_thread_is_named(tmp_path: Path) -> None:
    command = torchrun(2, "tests.processes.failing_rank", "blocked")
    with live_run(tmp_path, command=command) as run:
        run.wait_for_line(lambda line: line == "blocked")
        pid = run.pid_of("rank 1")
        os.kill(pid, signal.SIGKILL)
        took = run.seconds_to_end(LIMIT)
        print(f"kill -9 of rank 1 with a blocked rank 0: all gone after {took:.2f} s")
        run.check_cause(f"rank 1 (pid {pid}) died")
        run.check_nothing_left()


ERRORS = {
    "build": ("rank 1: unexpected ValueError: the scripted failure", "rank1.log"),
    "endpoint": ("PolicyWorker.update on policy@rank1 raised ValueError: the scripted failure", "rank0.log"),
}


@pytest.mark.timeout(120)
@pytest.mark.parametrize("mode", ["endpoint", pytest.param("build", marks=pytest.mark.faults)])
def test_an_unexpected_error_on_a_rank_is_the_first_cause_and_its_traceback_is_logged(mode: str, tmp_path: Path) -> None:
    cause, log = ERRORS[mode]
    with live_run(tmp_path, command=torchrun(2, "tests.processes.failing_rank", mode)) as run:
        run.seconds_to_end(90.0)
        assert run.process.returncode != 0
        run.check_cause(cause)
        logged = (run.run_folder / "logs" / log).read_text()
        assert "Traceback" in logged
        assert "failing_rank.py" in logged
        run.check_nothing_left()


@pytest.mark.faults
@pytest.mark.timeout(120)
@pytest.mark.parametrize("victim", ["agent-0", "reward-0"])
def test_an_agent_or_reward_worker_that_is_killed_is_started_again_and_the_run_goes_on(victim: str, tmp_path: Path) -> None:
    with live_run(tmp_path, "trainer.total_training_steps=12", command=TWO_RANKS) as run:
        run.wait_for_step()
        os.kill(run.pid_of(victim), signal.SIGKILL)
        run.wait_for_line(lambda line: "12/12" in line, 90.0)
        assert any(f"{victim} (pid" in line and "it is started again" in line for line in run.stdout)
        run.seconds_to_end(LIMIT)
        assert run.process.returncode == 0
        trained = [record["training/prompts/trained"] for record in run.metrics if "training/prompts/trained" in record]
        assert trained[-1] == 12 * 4
        run.check_nothing_left()
