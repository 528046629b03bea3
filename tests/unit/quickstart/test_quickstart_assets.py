"""The shipped files of the quickstart, and the script that makes them."""

import json
from pathlib import Path

import pytest
import torch
from transformers import AutoTokenizer, Qwen3ForCausalLM

from asyncrl.quickstart import build, sums
from asyncrl.quickstart.assets import ADD1, MODEL_FOLDER, PROMPTS_FILE
from asyncrl.quickstart.warmup import greedy_accuracy, warm_up

MODEL = ADD1 / MODEL_FOLDER


def test_the_hundred_prompts_are_the_one_digit_sums_with_their_answers() -> None:
    rows = [json.loads(line) for line in (ADD1 / PROMPTS_FILE).read_text().splitlines()]
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


def test_the_shipped_bytes_are_the_recorded_ones() -> None:
    record = build.read_record(ADD1)
    assert {name: build.digest(ADD1 / name) for name in build.BUILT_FILES} == record.sha256
    assert record.threads == 1
    assert 0.30 <= record.accuracy <= 0.40


def test_the_start_model_is_tiny_tied_float32_and_as_accurate_as_recorded() -> None:
    model = Qwen3ForCausalLM.from_pretrained(MODEL)
    assert sum(parameter.numel() for parameter in model.parameters()) == 395_776
    assert {parameter.dtype for parameter in model.parameters()} == {torch.float32}
    assert model.lm_head.weight is model.model.embed_tokens.weight
    assert greedy_accuracy(model) == pytest.approx(build.read_record(ADD1).accuracy, abs=0.02)


def test_transformers_reads_one_token_a_character_and_names_pad_and_eos() -> None:
    tokenizer = AutoTokenizer.from_pretrained(MODEL)
    assert tokenizer("3+4=")["input_ids"] == [3, 10, 4, 11] == sums.prompt_ids((3, 4))
    assert (tokenizer.pad_token_id, tokenizer.eos_token_id) == (12, 13)
    assert tokenizer.decode([1, 7, 13], skip_special_tokens=True) == "17"
    assert tokenizer.decode([1, 7, 13]) == "17<eos>"


def test_a_second_build_repeats_the_bytes_on_the_recorded_kind_of_cpu(tmp_path: Path) -> None:
    recorded = build.read_record(ADD1)
    threads = torch.get_num_threads()
    try:
        rebuilt = build.build(tmp_path, recorded.seed)
    finally:
        torch.set_num_threads(threads)
    assert 0.30 <= rebuilt.accuracy <= 0.40
    if build.conditions(rebuilt) == build.conditions(recorded):
        assert build.differences(ADD1, tmp_path) == []
        assert rebuilt == recorded


def test_a_changed_or_missing_file_is_named(tmp_path: Path) -> None:
    for folder in (tmp_path / "one", tmp_path / "two"):
        for name in build.BUILT_FILES:
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_bytes(name.encode())
    assert build.differences(tmp_path / "one", tmp_path / "two") == []
    (tmp_path / "one" / PROMPTS_FILE).write_bytes(b"changed")
    (tmp_path / "two" / "model/config.json").unlink()
    assert build.differences(tmp_path / "one", tmp_path / "two") == ["model/config.json", PROMPTS_FILE]


def test_a_warm_up_that_never_meets_its_window_asks_for_another_seed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("asyncrl.quickstart.warmup.MOST_STEPS", 4)
    with pytest.raises(RuntimeError, match="take another seed"):
        warm_up(1, lowest=0.99, highest=1.0)
