"""Ten steps of the quickstart in each async mode, those of sync are in ``test_quickstart``; and validation beside generation."""

import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from asyncrl.launch.inline import open_trainer
from asyncrl.observe.curve import read_metrics
from asyncrl.rollout.embedded import EmbeddedEngine
from asyncrl.trajectory import GenerateOutput, GenerateRequest
from tests.processes.invariants import accuracies, check_async_invariants, training_steps
from tests.processes.launching import run_quickstart
from tests.processes.overlap import overlap_of_run
from tests.processes.warm_ranks import run_warm

TEN = ("trainer.total_training_steps=10", "trainer.test_freq=5")
MODE = "trainer.v1.trainer_mode="


def check_ten(records: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Ten steps, validated three times; returns the steps."""
    steps = training_steps(records)
    assert [record["step"] for record in steps] == list(range(1, 11))
    assert len(accuracies(records)) == 3
    check_async_invariants(records)
    return steps


@pytest.mark.timeout(180)
def test_colocate_async_trains_rows_of_two_versions_and_loses_nothing(tmp_path: Path) -> None:
    # In a few rounds of some sessions each, so that a pause finds some of them under way.
    run_warm(tmp_path / "run", *TEN, f"{MODE}colocate_async", "actor_rollout_ref.rollout.max_num_seqs=64")
    steps = check_ten(read_metrics(tmp_path / "run"))
    assert max(record["training/off_policy/trajectory_spans/max"] for record in steps) >= 2
    assert sum(record["training/continued_tokens"] for record in steps) > 0
    assert all(record["perf/engine_paused_s/mean"] > 0 for record in steps)


@pytest.mark.timeout(180)
def test_separate_async_generates_while_it_learns_and_loses_nothing(tmp_path: Path) -> None:
    # A slow engine has something to do all the time.
    output = run_quickstart(tmp_path / "run", *TEN, f"{MODE}separate_async", "actor_rollout_ref.rollout.max_num_seqs=16")
    steps = check_ten(read_metrics(tmp_path / "run"))
    assert "step 10/10" in output
    assert all(record["perf/engine_paused_s/mean"] == record["training/continued_tokens"] == 0 for record in steps)
    found = overlap_of_run(tmp_path / "run")
    assert 0 < found.both < min(found.updating, found.generating) < found.whole


async def test_a_validation_goes_before_the_training_sessions_that_are_under_way(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    asked: dict[str, GenerateRequest] = {}
    ended: list[bool] = []
    submit, step = EmbeddedEngine.submit, EmbeddedEngine.step

    def noting_submit(engine: EmbeddedEngine, requests: Sequence[GenerateRequest]) -> None:
        asked.update({request.request_id: request for request in requests})
        submit(engine, requests)

    def noting_step(engine: EmbeddedEngine) -> list[GenerateOutput]:
        outputs = step(engine)
        ended.extend(asked[output.request_id].urgent for output in outputs)
        return outputs

    monkeypatch.setattr(EmbeddedEngine, "submit", noting_submit)
    monkeypatch.setattr(EmbeddedEngine, "step", noting_step)
    options = ["config=quickstart", f"{MODE}colocate_async", f"trainer.default_local_dir={tmp_path}", "trainer.val_before_train=false"]
    options += ["data.train_batch_size=4", "actor_rollout_ref.rollout.n=4", "actor_rollout_ref.actor.ppo_mini_batch_size=2"]
    # Much more than a step needs, and slow: whatever happens in between, some of it is left when the validation begins.
    options += ["trainer.v1.colocate_async.num_warmup_batches=10", "actor_rollout_ref.rollout.max_num_seqs=8"]
    options += ["data.max_response_length=24", "actor_rollout_ref.rollout.ignore_eos=true"]
    async with open_trainer(options) as trainer:
        await trainer.train_step()
        await trainer.parts.validation.run(1)
        await trainer.train_step()
    # The uid of a validation counts steps, that of a prompt epochs.
    assert all(request.urgent == ("v" in request.uid) for request in asked.values())
    # From its first request to its last answer nothing else ends, though much was under way.
    stretches = [(urgent, len(list(answers))) for urgent, answers in itertools.groupby(ended)]
    assert [urgent for urgent, _ in stretches] == [False, True, False]
    assert stretches[1][1] == 100
