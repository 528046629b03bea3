"""The numbers of a run stand under the steps they belong to: each once, in order, with the weights of that step, also over a resume."""

from pathlib import Path
from typing import Any

import pytest

from asyncrl import cli
from asyncrl.algorithms.objective import policy_objective
from asyncrl.errors import CallFailed
from asyncrl.observe.curve import read_metrics
from asyncrl.trainer.validation import Validation
from asyncrl.weight_sync.in_place import InPlaceSync
from tests.processes.invariants import training_steps
from tests.processes.launching import ROOT
from tests.processes.test_validation_runs import write_rows

EVERY_SECOND = (
    "config=quickstart",
    "debug=inline",
    "data.train_batch_size=2",
    "actor_rollout_ref.rollout.n=2",
    "actor_rollout_ref.actor.ppo_mini_batch_size=2",
    "trainer.total_training_steps=5",
    "trainer.val_before_train=true",
    "trainer.test_freq=2",
    "trainer.save_freq=1",
    f"reward.custom_reward_function.path={ROOT / 'tests/processes/component_reward.py'}",
)


@pytest.fixture
def validated(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Grows by the version that the engines hold whenever a validation begins."""
    published, found = [-1], list[int]()
    publish, run = InPlaceSync.publish, Validation.run

    def noting_publish(*args: Any, **kwargs: Any) -> Any:
        published.append(next(each for each in (*args, *kwargs.values()) if isinstance(each, int)))
        return publish(*args, **kwargs)

    def noting_run(*args: Any, **kwargs: Any) -> Any:
        found.append(published[-1])
        return run(*args, **kwargs)

    monkeypatch.setattr(InPlaceSync, "publish", noting_publish)
    monkeypatch.setattr(Validation, "run", noting_run)
    return found


def options(folder: Path) -> list[str]:
    return ["train", *EVERY_SECOND, f"data.val_files={write_rows(folder)}", f"trainer.default_local_dir={folder / 'run'}"]


def validation_steps(records: list[dict[str, Any]]) -> list[int]:
    return [record["step"] for record in records if any(name.startswith("val-") for name in record)]


def test_five_steps_validate_before_the_first_at_each_second_and_at_the_last(validated: list[int], tmp_path: Path) -> None:
    assert cli.main(options(tmp_path)) == 0
    records = read_metrics(tmp_path / "run")
    assert [record["step"] for record in records] == [0, 1, 2, 3, 4, 5]
    assert [record["step"] for record in training_steps(records)] == [1, 2, 3, 4, 5]
    assert [record["training/global_step"] for record in training_steps(records)] == [1, 2, 3, 4, 5]
    assert validation_steps(records) == validated == [0, 2, 4, 5]


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
def test_a_resumed_run_has_each_step_once_and_validates_at_the_same_steps(
    validated: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[None] = []

    def broken(*args: Any, **kwargs: Any) -> Any:
        calls.append(None)
        if len(calls) == 4:
            raise ZeroDivisionError("in the fourth step")
        return policy_objective(*args, **kwargs)

    monkeypatch.setattr("asyncrl.workers.policy.policy_objective", broken)
    with pytest.raises(CallFailed, match="in the fourth step"):
        cli.main(options(tmp_path))
    assert [record["step"] for record in read_metrics(tmp_path / "run")] == [0, 1, 2, 3]
    assert cli.main(options(tmp_path)) == 0
    records = read_metrics(tmp_path / "run")
    assert [record["step"] for record in records] == [0, 1, 2, 3, 4, 5]
    assert validation_steps(records) == validated == [0, 2, 4, 5]
