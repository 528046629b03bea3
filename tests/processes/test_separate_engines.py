"""Engines in processes of their own: a run with them, and one whose engine is killed."""

import os
import signal
from pathlib import Path

import pytest

from asyncrl.observe.curve import read_metrics
from tests.processes.invariants import training_steps
from tests.processes.live_run import LiveRun, live_run
from tests.processes.two_nodes import make_key, two_nodes

SEPARATE = (
    "trainer.v1.trainer_mode=separate_async",
    "trainer.v1.separate_async.parameter_sync_step=1",
    "actor_rollout_ref.rollout.nnodes=1",
    "actor_rollout_ref.rollout.n_gpus_per_node=1",
    # A model of 1.7 MB in 2 buckets.
    "actor_rollout_ref.rollout.checkpoint_engine.update_weights_bucket_megabytes=1",
)


def check_run(run: LiveRun, steps: int) -> None:
    """It came to its end, every step was trained, and each published other weights."""
    assert run.process.wait(120) == 0, run.output()
    run.join_readers()
    records = training_steps(read_metrics(run.run_folder))
    assert [record["step"] for record in records] == list(range(1, steps + 1))
    assert len({record["training/weight_digest"] for record in records}) == steps
    assert all(record["training/weights_changed"] == 1.0 for record in records)
    run.check_nothing_left()


@pytest.mark.timeout(180)
def test_two_ranks_train_on_what_an_engine_of_its_own_samples(tmp_path: Path) -> None:
    with live_run(tmp_path, *SEPARATE, "trainer.total_training_steps=3") as run:
        run.wait_for_step()
        assert {process.environ().get("RANK") for process in run.processes()} >= {"0", "1", "2"}
        assert run.pid_of("engine-0")
        check_run(run, 3)
        assert any(line.split()[:2] == ["rank", "2"] and "lends its device to engine-0" in line for line in run.stdout), run.output()
        assert (run.run_folder / "logs" / "engine-0.log").exists()


@pytest.mark.faults
@pytest.mark.timeout(240)
@pytest.mark.parametrize("engines", [1, 2])
def test_an_engine_that_is_killed_is_replaced_and_the_run_goes_on(tmp_path: Path, engines: int) -> None:
    more = ("trainer.total_training_steps=12", f"actor_rollout_ref.rollout.n_gpus_per_node={engines}")
    with live_run(tmp_path, *SEPARATE, *more) as run:
        run.wait_for_step()
        os.kill(run.pid_of("engine-0"), signal.SIGKILL)
        line = run.wait_for_line(lambda line: "engine-0" in line and "died" in line)
        assert line.endswith("it is started again")
        run.wait_for_line(lambda line: line.startswith("engine-0 serves again, with version "))
        check_run(run, 12)


@pytest.mark.faults
@pytest.mark.timeout(240)
def test_a_node_that_rolls_out_is_given_weights_by_one_that_trains(tmp_path: Path) -> None:
    key = make_key(tmp_path / "key")
    with two_nodes(tmp_path, [key, key], *SEPARATE, "trainer.nnodes=1", "trainer.total_training_steps=3") as nodes:
        trains, rolls = nodes.leader()
        assert rolls.pid_of("engine-0")
        with pytest.raises(LookupError):
            trains.pid_of("engine-0")
        nodes.seconds_to_end(120.0)
        assert [agent.process.returncode for agent in nodes.agents] == [0, 0], nodes.output()
        nodes.check_nothing_left()
    assert len({record["training/weight_digest"] for record in training_steps(read_metrics(tmp_path / "run"))}) == 3
