"""Validation through the whole pipe: every row once, every session counted, nothing left behind."""

import json
from pathlib import Path

import pytest

from asyncrl.launch.inline import open_trainer
from asyncrl.observe.curve import read_metrics
from tests.processes.invariants import training_steps
from tests.processes.launching import ROOT
from tests.processes.warm_ranks import run_warm

SOURCES = ["even", "odd"]


def write_rows(folder: Path) -> Path:
    """Ten prompts in two sources; the last two have the texts of the first two, and one of them also its right answer."""
    rows = [
        {"prompt": f"{number % 8}+1=", "data_source": SOURCES[number % 2], "reward_model": {"ground_truth": str(number % 9 + 1)}}
        for number in range(10)
    ]
    file = folder / "val.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return file


def options(folder: Path) -> list[str]:
    rollout = "actor_rollout_ref.rollout"
    return [
        "config=quickstart",
        f"data.val_files={write_rows(folder)}",
        "data.val_batch_size=4",
        f"{rollout}.val_kwargs.n=3",
        f"{rollout}.val_kwargs.temperature=1.0",
        "data.train_batch_size=4",
        "actor_rollout_ref.actor.ppo_mini_batch_size=2",
        f"{rollout}.n=2",
        "trainer.total_training_steps=1",
        f"reward.custom_reward_function.path={ROOT / 'tests/processes/counting_reward.py'}",
        f"+reward.custom_reward_function.reward_kwargs.file={folder / 'judged.jsonl'}",
        f"trainer.default_local_dir={folder / 'run'}",
    ]


@pytest.mark.timeout(120)
async def test_each_of_ten_rows_is_validated_once_with_three_sessions_and_the_partition_is_empty_after(tmp_path: Path) -> None:
    async with open_trainer(options(tmp_path)) as trainer:
        judged = [json.loads(line) for line in (tmp_path / "judged.jsonl").read_text().splitlines()]
        stats = await trainer.parts.queue.stats()
        assert all(not any(shard.partitions.values()) for shard in stats)
        found = await trainer.parts.validation.run(7)
    assert len(judged) == 30
    by_uid: dict[str, list[str]] = {}
    for key in judged:
        uid, session, _ = key["key"].rsplit("_", 2)
        by_uid.setdefault(uid, []).append(session)
    assert {uid: sorted(sessions) for uid, sessions in by_uid.items()} == {f"s1v0p{row}": ["0", "1", "2"] for row in range(10)}
    # The scripted scores are 1 for session 0 and 0 for the others: a third of every row, in either source.
    for source in SOURCES:
        assert found[f"val-core/{source}/acc/mean@3"] == pytest.approx(1 / 3)
        assert found[f"val-aux/{source}/pass@3"] == 1.0


@pytest.mark.timeout(120)
def test_val_only_validates_once_and_trains_nothing(tmp_path: Path) -> None:
    run_warm(tmp_path / "run", "trainer.val_only=true")
    records = read_metrics(tmp_path / "run")
    assert [record["step"] for record in records] == [0]
    assert records[0]["val-core/add1_train/acc/mean@1"] == pytest.approx(0.36)
    assert training_steps(records) == []
