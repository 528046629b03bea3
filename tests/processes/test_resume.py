"""A run that is killed and started again ends as the one that was not."""

import shutil
import subprocess
from pathlib import Path

import pytest

from asyncrl.observe.curve import read_metrics
from tests.processes.invariants import training_steps
from tests.processes.launching import ROOT, environment, torchrun
from tests.processes.mortal import POINTS, SAVING

STEPS = 4
SOON = ("saving",)
"""The point that the suite tries; the others run with ``make faults``."""
OPTIONS = (
    "config=quickstart",
    f"trainer.total_training_steps={STEPS}",
    *SAVING,
    "data.train_batch_size=8",
    "actor_rollout_ref.rollout.n=4",
    "actor_rollout_ref.actor.ppo_mini_batch_size=4",
    "actor_rollout_ref.rollout.full_determinism=true",
)


def run(folder: Path, point: str, step: int, *options: str, restarts: int = 1) -> str:
    """Run with one death in the first attempt; return what was printed."""
    command = torchrun(2, "tests.processes.mortal", point, str(step), *OPTIONS, f"trainer.default_local_dir={folder}", *options)
    command[command.index("-m", 3) : command.index("-m", 3)] = ["--max-restarts", str(restarts)]
    result = subprocess.run(command, cwd=ROOT, env=environment(), capture_output=True, text=True, timeout=150)
    assert result.returncode == 0, result.stdout[-2000:] + result.stderr[-4000:]
    return result.stdout


def final(folder: Path) -> str:
    return str(read_metrics(folder)[-1]["training/weight_digest"])


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("whole") / "run"
    run(folder, "never", 0)
    return folder


@pytest.mark.timeout(240)
@pytest.mark.parametrize(
    "point", [point if point in SOON else pytest.param(point, marks=pytest.mark.faults) for point in (*POINTS, "interrupted")]
)
def test_after_a_kill_torchrun_brings_the_run_to_bitwise_the_same_weights(point: str, uninterrupted: Path, tmp_path: Path) -> None:
    output = run(tmp_path / "run", point, 2)
    records = training_steps(read_metrics(tmp_path / "run"))
    # The checkpoint of step 1 may still be in writing while step 2 is generated.
    after = {"generating": (0, 1), "gathering": (0, 1), "named": (2,), "saved": (2,), "synced": (2,), "interrupted": (2,)}.get(point, (1,))
    resumed_after = next((step for step in after if f"resumed after step {step}" in output), 0)
    assert resumed_after in after
    assert [record["step"] for record in records] == [step for step in range(1, STEPS + 1) if step != 2 or resumed_after < 2]
    assert all(record["training/rows_trained"] == 32 for record in records)
    assert records[-1]["training/prompts/trained"] == 8 * STEPS
    assert final(tmp_path / "run") == final(uninterrupted)


@pytest.mark.timeout(240)
def test_a_damaged_checkpoint_is_refused_by_name_and_the_one_before_it_serves(uninterrupted: Path, tmp_path: Path) -> None:
    shutil.copytree(uninterrupted, tmp_path / "run")
    latest = tmp_path / "run" / f"global_step_{STEPS}"
    shard = next(path for path in sorted((latest / "actor").iterdir()) if path.suffix == ".distcp")
    content = bytearray(shard.read_bytes())
    content[len(content) // 2] ^= 1
    shard.write_bytes(content)
    output = run(tmp_path / "run", "never", 0)
    assert f"checkpoint of step {STEPS} is refused" in output
    assert shard.name in output
    assert f"resumed after step {STEPS - 1}" in output
    assert final(tmp_path / "run") == final(uninterrupted)
