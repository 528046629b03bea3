"""Wrong configurations through the real commands: one line that names the key, exit code 2, nothing started."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

import pytest

from asyncrl import cli
from tests.processes.launching import ROOT, environment, torchrun

LIMIT = 15.0
"""Three times the promise of 5 s."""

ROW = {"prompt": [{"role": "user", "content": "1+1="}], "data_source": "sums", "reward_model": {"ground_truth": "2"}}


def missing_reward_name(folder: Path) -> str:
    return reward(folder, "def other(): ...")


def wrong_signature(folder: Path) -> str:
    return reward(folder, "def compute_score(answer): ...")


def reward(folder: Path, text: str) -> str:
    """An option that uses a reward file with this text."""
    (folder / "reward.py").write_text(text)
    return f"reward.custom_reward_function.path={folder / 'reward.py'}"


def broken_row(folder: Path) -> str:
    (folder / "rows.jsonl").write_text(json.dumps(ROW) + "\n{broken\n")
    return f"data.train_files={folder / 'rows.jsonl'}"


def used_folder(folder: Path) -> str:
    (folder / "config.yaml").write_text("{}")
    return f"trainer.default_local_dir={folder} trainer.resume_mode=disable"


def no_folder(folder: Path) -> str:
    (folder / "file").write_text("")
    return f"trainer.default_local_dir={folder / 'file' / 'run'}"


Given = str | Callable[[Path], str]
REFUSED: dict[str, tuple[Given, list[str]]] = {
    "an unknown key": ("trainer.nonsense=1", ["trainer.nonsense"]),
    "a typo": ("trainer.total_training_step=5", ["trainer.total_training_step:", "did you mean trainer.total_training_steps"]),
    "a wrong type": ("trainer.seed=abc", ["trainer.seed", "abc", "a whole number >= 0"]),
    "out of range": ("actor_rollout_ref.actor.clip_ratio=-1", ["actor_rollout_ref.actor.clip_ratio", "-1"]),
    "no divisor": ("actor_rollout_ref.actor.ppo_mini_batch_size=5", ["ppo_mini_batch_size", "5", "divisor of data.train_batch_size = 32"]),
    "one session": ("actor_rollout_ref.rollout.n=1", ["actor_rollout_ref.rollout.n", "1", "at least 2", "grpo"]),
    "temperature 0": ("actor_rollout_ref.rollout.temperature=0", ["actor_rollout_ref.rollout.temperature", "0"]),
    "no model": ("actor_rollout_ref.model.path=/nowhere/model", ["actor_rollout_ref.model.path", "/nowhere/model", "config.json"]),
    "no prompts": ("data.train_files=/nowhere/prompts.jsonl", ["data.train_files", "/nowhere/prompts.jsonl"]),
    "a broken row": (broken_row, ["data.train_files", "rows.jsonl", "row 2"]),
    "no reward file": ("reward.custom_reward_function.path=/nowhere/r.py", ["reward.custom_reward_function.path", "/nowhere/r.py"]),
    "no reward name": (missing_reward_name, ["reward.custom_reward_function.name", "compute_score", "other"]),
    "a wrong signature": (wrong_signature, ["reward.custom_reward_function.name", "compute_score", "data_source, solution_str"]),
    "megatron": ("actor_rollout_ref.actor.strategy=megatron", ["actor_rollout_ref.actor.strategy", "megatron"]),
    "an unknown mode": ("trainer.v1.trainer_mode=sometimes", ["trainer.v1.trainer_mode", "sometimes", "sync"]),
    "a verl option without a use": ("actor_rollout_ref.actor.megatron.seed=1", ["actor_rollout_ref.actor.megatron.seed"]),
    "a used run folder": (used_folder, ["trainer.resume_mode", "disable", "holds a run already"]),
    "a run folder below a file": (no_folder, ["trainer.default_local_dir", "file"]),
    "another world size": ("--nproc-per-node=3", ["trainer.n_gpus_per_node", "2", "3"]),
    "no ranks": ("--nproc-per-node=0", ["--nproc-per-node", "0", "at least 1"]),
    "garbage": ("garbage", ["garbage", "key=value"]),
}


@pytest.fixture(autouse=True)
def nothing_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    """torchrun must not take over."""

    def started(*arguments: Any) -> NoReturn:
        raise AssertionError(f"started: {arguments}")

    monkeypatch.setattr(os, "execv", started)


def refused(capsys: pytest.CaptureFixture[str], *options: str) -> list[str]:
    """What ``asyncrl train`` says; it must refuse in time and say nothing else."""
    began = time.monotonic()
    assert cli.main(["train", *options]) == 2
    assert time.monotonic() - began < LIMIT
    printed = capsys.readouterr()
    assert printed.out == ""
    assert all(line.startswith("asyncrl: ") for line in printed.err.splitlines()), printed.err
    return printed.err.splitlines()


@pytest.mark.parametrize("name", REFUSED)
def test_a_wrong_configuration_is_refused_in_one_line_with_key_value_and_what_is_allowed(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given, words = REFUSED[name]
    options = given if isinstance(given, str) else given(tmp_path)
    lines = refused(capsys, "config=quickstart", *options.split())
    assert len(lines) == 1
    assert all(word in lines[0] for word in words), lines


@pytest.mark.parametrize(("options", "word"), [(["config=quickstat"], "quickstat"), ([], "config=NAME")])
def test_an_unknown_configuration_is_refused_with_the_known_ones(options: list[str], word: str, capsys: pytest.CaptureFixture[str]) -> None:
    (line,) = refused(capsys, *options)
    assert word in line
    assert "quickstart" in line


def test_every_broken_combination_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    first, second = refused(capsys, "config=quickstart", "actor_rollout_ref.rollout.n=1", "data.train_batch_size=7")
    assert "ppo_mini_batch_size" in first
    assert second.startswith("asyncrl: also actor_rollout_ref.rollout.n: got 1")


def test_the_command_refuses_without_importing_torch(tmp_path: Path) -> None:
    command = [sys.executable, "-X", "importtime", "-m", "asyncrl.cli", "train", "config=quickstart", missing_reward_name(tmp_path)]
    began = time.monotonic()
    result = subprocess.run(command, cwd=ROOT, env=environment(), capture_output=True, text=True, timeout=60)
    took = time.monotonic() - began
    print(f"refused after {took:.2f} s")
    imported = [line.rpartition("|")[2].strip() for line in result.stderr.splitlines() if line.startswith("import time:")]
    said = [line for line in result.stderr.splitlines() if not line.startswith("import time:")]
    assert result.returncode == 2
    assert took < LIMIT
    assert len(said) == 1
    assert "asyncrl.cli" not in said[0]
    assert "msgspec" in imported
    assert not {"torch", "transformers", "zmq"} & set(imported)


@pytest.mark.timeout(120)
@pytest.mark.parametrize("options", [["trainer.seed=abc"], ["trainer.n_gpus_per_node=3"]])
def test_under_torchrun_rank_0_alone_says_what_is_wrong(options: list[str], tmp_path: Path) -> None:
    folder = tmp_path / "run"
    command = torchrun(2, "asyncrl.launch", "config=quickstart", f"trainer.default_local_dir={folder}", *options)
    result = subprocess.run(command, cwd=ROOT, env=environment() | {"TMPDIR": str(tmp_path)}, capture_output=True, text=True, timeout=90)
    assert result.returncode != 0
    said = [line for line in result.stderr.splitlines() if line.startswith("asyncrl:")]
    key, _, value = options[0].partition("=")
    assert len(said) == 1, result.stderr
    assert key in said[0]
    assert value in said[0]
    before_the_report = result.stderr.partition("ChildFailedError")[0].partition(said[0])[0]
    assert "Traceback" not in before_the_report
    assert not folder.exists()
    assert not list(tmp_path.glob("asyncrl-*"))


def test_a_command_line_that_is_none_is_a_usage_error(capsys: pytest.CaptureFixture[str]) -> None:
    for arguments in (["train", "config=quickstart", "--foo"], ["dance"], []):
        with pytest.raises(SystemExit, match="2"):
            cli.main(arguments)
        assert "asyncrl: error:" in capsys.readouterr().err


def test_help_and_plan_are_readable(capsys: pytest.CaptureFixture[str]) -> None:
    for arguments in (["--help"], ["train", "--help"], ["plan", "--help"]):
        with pytest.raises(SystemExit, match="0"):
            cli.main(arguments)
        assert "quickstart" in capsys.readouterr().out or arguments == ["--help"]
    assert cli.main(["plan", "config=quickstart"]) == 0
    assert "prompts per step             32" in capsys.readouterr().out
    assert cli.main(["plan", "config=quickstart", "--json", "trainer.total_training_steps=7"]) == 0
    assert json.loads(capsys.readouterr().out)["steps"] == 7


def test_an_interrupt_exits_with_130(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*arguments: Any) -> NoReturn:
        raise KeyboardInterrupt

    monkeypatch.setattr(cli, "load_config", interrupted)
    assert cli.main(["plan", "config=quickstart"]) == 130


def test_train_becomes_torchrun_with_the_ranks_of_the_configuration(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def started(path: str, command: list[str]) -> NoReturn:
        raise SystemExit(repr(command))

    monkeypatch.setattr(os, "execv", started)
    with pytest.raises(SystemExit) as found:
        cli.main(["train", "config=quickstart", "trainer.logger=[console]"])
    assert found.value.code == repr(torchrun(2, "asyncrl.launch", "config=quickstart", "trainer.logger=[console]"))
    assert capsys.readouterr().out.startswith("asyncrl: torchrun --standalone --nproc-per-node 2 -m asyncrl.launch config=quickstart '")
