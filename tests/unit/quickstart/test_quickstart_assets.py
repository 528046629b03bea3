"""The shipped files of the quickstart, and the script that makes them."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from transformers import AutoTokenizer, Qwen3ForCausalLM

from asyncrl.quickstart import build
from asyncrl.quickstart.assets import ADD1, ADD2, HELD_OUT_FILE, MODEL_FOLDER, PROBE_FILE, PROMPTS_FILE, TRAIN_FILE
from asyncrl.quickstart.split import pairs_digest
from asyncrl.quickstart.sums import Pair, Row, Sums
from asyncrl.quickstart.tasks import TASKS, one_digit
from asyncrl.quickstart.warmup import greedy_accuracy, warm_up

both_tasks = pytest.mark.parametrize("name", ["add1", "add2"])


def rows_of(path: Path) -> list[Row]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def pairs_of(path: Path) -> list[Pair]:
    operands = [row["prompt"].rstrip("=").split("+") for row in rows_of(path)]
    return [(int(left), int(right)) for left, right in operands]


def test_the_hundred_prompts_are_the_one_digit_sums_with_their_answers() -> None:
    rows = rows_of(ADD1 / PROMPTS_FILE)
    assert len(rows) == 100
    assert rows[34] == {
        "prompt": "3+4=",
        "data_source": "add1_train",
        "reward_model": {"style": "rule", "ground_truth": "7"},
        "extra_info": {"index": 34},
    }
    for row in rows:
        left, right = row["prompt"].rstrip("=").split("+")
        assert row["reward_model"]["ground_truth"] == str(int(left) + int(right))
    assert len({row["prompt"] for row in rows}) == 100


def test_the_two_digit_prompts_pad_the_operands_and_not_the_answer() -> None:
    rows = rows_of(ADD2 / TRAIN_FILE)
    assert len(rows) == 8_000
    assert [row for row in rows if row["prompt"] == "07+35="] == [
        {
            "prompt": "07+35=",
            "data_source": "add2_train",
            "reward_model": {"style": "rule", "ground_truth": "42"},
            "extra_info": {"index": 735},
        }
    ]
    for name in (TRAIN_FILE, PROBE_FILE, HELD_OUT_FILE):
        for pair, row in zip(pairs_of(ADD2 / name), rows_of(ADD2 / name), strict=True):
            assert row["reward_model"]["ground_truth"] == str(sum(pair))
            assert row["extra_info"]["index"] == 100 * pair[0] + pair[1]


def test_no_held_out_pair_is_trained_in_either_order() -> None:
    trained, held_out = set(pairs_of(ADD2 / TRAIN_FILE)), set(pairs_of(ADD2 / HELD_OUT_FILE))
    assert len(held_out) == 512
    assert not trained & held_out
    assert not trained & {(right, left) for left, right in held_out}
    assert {row["data_source"] for row in rows_of(ADD2 / HELD_OUT_FILE)} == {"add2_heldout"}


def test_the_probe_of_trained_prompts_holds_rows_of_the_training_file() -> None:
    trained = {row["prompt"]: row for row in rows_of(ADD2 / TRAIN_FILE)}
    probe = rows_of(ADD2 / PROBE_FILE)
    assert len({row["prompt"] for row in probe}) == 512
    assert all(trained[row["prompt"]] == row for row in probe)


def test_the_recorded_hash_is_that_of_every_pair_missing_from_the_training_file() -> None:
    trained = set(pairs_of(ADD2 / TRAIN_FILE))
    missing = [(left, right) for left in range(100) for right in range(100) if (left, right) not in trained]
    assert build.read_record(ADD2).split == build.SplitRecord(
        trained_pairs=8_000, held_out_pairs=2_000, held_out_sha256=pairs_digest(missing)
    )
    assert set(pairs_of(ADD2 / HELD_OUT_FILE)) <= set(missing)
    assert build.read_record(ADD1).split is None


@both_tasks
def test_the_shipped_bytes_are_the_recorded_ones(name: str) -> None:
    task = TASKS[name]()
    record = build.read_record(task.folder)
    assert {file: build.digest(task.folder / file) for file in build.built_files(task)} == record.sha256
    assert (record.threads, record.seed) == (1, task.seed)
    assert task.lowest <= record.accuracy <= task.highest


@both_tasks
def test_the_start_model_is_tiny_tied_float32_and_as_accurate_as_recorded(name: str) -> None:
    task = TASKS[name]()
    model = Qwen3ForCausalLM.from_pretrained(task.folder / MODEL_FOLDER)
    assert sum(parameter.numel() for parameter in model.parameters()) == 395_776
    assert {parameter.dtype for parameter in model.parameters()} == {torch.float32}
    assert model.lm_head.weight is model.model.embed_tokens.weight
    found = greedy_accuracy(model, task.sums, task.judged)
    assert found == pytest.approx(build.read_record(task.folder).accuracy, abs=0.02)


def test_transformers_reads_one_token_a_character_and_names_pad_and_eos() -> None:
    tokenizer = AutoTokenizer.from_pretrained(ADD2 / MODEL_FOLDER)
    assert tokenizer("3+4=")["input_ids"] == [3, 10, 4, 11] == Sums(1).prompt_ids((3, 4))
    assert tokenizer("07+35=")["input_ids"] == [0, 7, 10, 3, 5, 11] == Sums(2).prompt_ids((7, 35))
    assert (tokenizer.pad_token_id, tokenizer.eos_token_id) == (12, 13)
    assert tokenizer.decode([1, 7, 13], skip_special_tokens=True) == "17"
    assert tokenizer.decode([1, 7, 13]) == "17<eos>"


def test_a_second_build_repeats_the_bytes_on_the_recorded_kind_of_cpu(tmp_path: Path) -> None:
    recorded = build.read_record(ADD1)
    threads = torch.get_num_threads()
    try:
        rebuilt = build.build(one_digit(), tmp_path, recorded.seed)
    finally:
        torch.set_num_threads(threads)
    assert 0.30 <= rebuilt.accuracy <= 0.40
    if build.conditions(rebuilt) == build.conditions(recorded):
        assert build.differences(build.built_files(one_digit()), ADD1, tmp_path) == []
        assert rebuilt == recorded


def test_a_changed_or_missing_file_is_named(tmp_path: Path) -> None:
    files = build.built_files(one_digit())
    for folder in (tmp_path / "one", tmp_path / "two"):
        for name in files:
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_bytes(name.encode())
    assert build.differences(files, tmp_path / "one", tmp_path / "two") == []
    (tmp_path / "one" / PROMPTS_FILE).write_bytes(b"changed")
    (tmp_path / "two" / "model/config.json").unlink()
    assert build.differences(files, tmp_path / "one", tmp_path / "two") == ["model/config.json", PROMPTS_FILE]


def test_the_script_refuses_an_unknown_task_and_one_folder_for_two(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for arguments, said in ((["add3"], "unknown task add3"), (["--to", str(tmp_path)], "--to takes the folder of one task")):
        with pytest.raises(SystemExit):
            build.main(arguments)
        assert said in capsys.readouterr().err


def test_a_warm_up_that_never_meets_its_window_asks_for_another_seed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("asyncrl.quickstart.warmup.MOST_STEPS", 4)
    with pytest.raises(RuntimeError, match="take another seed"):
        warm_up(replace(one_digit(), lowest=0.99, highest=1.0), seed=1)
