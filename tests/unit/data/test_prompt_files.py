"""Prompt files: what is read, and what is refused by file and row."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as arrow
import pyarrow.parquet as parquet
import pytest

from asyncrl.data.plain import missing, plain
from asyncrl.data.prompts import PromptRow, load_prompts, within_length
from asyncrl.errors import DataError

SUM = {"prompt": "3+4=", "data_source": "add1", "reward_model": {"style": "rule", "ground_truth": "7"}, "extra_info": {"index": 3}}
CHAT = {
    "prompt": [{"role": "user", "content": "Grüße?"}],
    "data_source": "chat",
    "reward_model": {"style": "rule", "ground_truth": "hallo"},
    "extra_info": None,
}


def lines(path: Path, *rows: Any) -> str:
    path.write_text("".join((row if isinstance(row, str) else json.dumps(row)) + "\n" for row in rows), encoding="utf-8")
    return str(path)


def table(path: Path, *rows: Any) -> str:
    parquet.write_table(arrow.Table.from_pylist(list(rows)), path)
    return str(path)


def test_json_lines_give_texts_and_chats_with_verls_columns(tmp_path: Path) -> None:
    rows = load_prompts(lines(tmp_path / "a.jsonl", SUM, "", CHAT))
    assert rows == [
        PromptRow(prompt="3+4=", data_source="add1", ground_truth="7", extra_info={"index": 3}, agent_name=None, index=0),
        PromptRow(prompt=[{"role": "user", "content": "Grüße?"}], data_source="chat", ground_truth="hallo", extra_info={}, index=1),
    ]


def test_a_json_array_equals_json_lines(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text(json.dumps([SUM, CHAT], indent=1))
    assert load_prompts(str(tmp_path / "a.json")) == load_prompts(lines(tmp_path / "a.jsonl", SUM, CHAT))


def test_parquet_equals_json_lines(tmp_path: Path) -> None:
    read = load_prompts(table(tmp_path / "a.parquet", {**CHAT, "extra_info": {"index": 1}}, CHAT))
    assert read == load_prompts(lines(tmp_path / "a.jsonl", {**CHAT, "extra_info": {"index": 1}}, CHAT))
    assert type(read[0].extra_info["index"]) is int


def test_parquet_with_only_nan_as_extra_info_is_read(tmp_path: Path) -> None:
    row = {**SUM, "extra_info": float("nan"), "agent_name": float("nan")}
    (read,) = load_prompts(table(tmp_path / "a.parquet", row))
    assert (read.extra_info, read.agent_name) == ({}, None)


def test_parts_that_a_table_fills_with_null_are_left_out_of_a_message(tmp_path: Path) -> None:
    first = {**CHAT, "prompt": [{"role": "system", "content": "be kind", "name": "rules"}, {"role": "user", "content": "hi"}]}
    (row,) = load_prompts(table(tmp_path / "a.parquet", first))
    assert row.prompt == [{"role": "system", "content": "be kind", "name": "rules"}, {"role": "user", "content": "hi"}]


def test_several_files_are_joined_in_order_and_duplicates_stay(tmp_path: Path) -> None:
    files = [lines(tmp_path / "a.jsonl", SUM), lines(tmp_path / "b.jsonl", CHAT, SUM)]
    rows = load_prompts(files)
    assert [row.data_source for row in rows] == ["add1", "chat", "add1"]
    assert [row.index for row in rows] == [0, 1, 2]


def test_other_column_names_can_be_given(tmp_path: Path) -> None:
    row = {"question": "1+1=", "origin": "mine", "reward_model": {"ground_truth": None}, "agent_name": "tool_agent"}
    (read,) = load_prompts(lines(tmp_path / "a.jsonl", row), prompt_key="question", reward_fn_key="origin")
    assert (read.prompt, read.data_source, read.ground_truth, read.agent_name) == ("1+1=", "mine", None, "tool_agent")


def test_max_samples_keeps_the_head_or_a_seeded_subset_in_file_order(tmp_path: Path) -> None:
    file = lines(tmp_path / "a.jsonl", *({**SUM, "prompt": str(number)} for number in range(20)))
    assert [row.index for row in load_prompts(file, max_samples=3)] == [0, 1, 2]
    assert len(load_prompts(file, max_samples=-1)) == len(load_prompts(file, max_samples=50)) == 20
    some = [row.index for row in load_prompts(file, max_samples=5, subset_seed=1)]
    assert some == sorted(some) == [row.index for row in load_prompts(file, max_samples=5, subset_seed=1)]
    assert some != [row.index for row in load_prompts(file, max_samples=5, subset_seed=2)]
    with pytest.raises(DataError, match="no prompts"):
        load_prompts(file, max_samples=0)


def without(column: str) -> dict[str, Any]:
    return {name: value for name, value in SUM.items() if name != column}


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ({**SUM, "prompt": ""}, "'prompt' must be a non-empty text"),
        ({**SUM, "prompt": []}, "'prompt' must be a non-empty text"),
        ({**SUM, "prompt": None}, "'prompt' must be a non-empty text"),
        ({**SUM, "prompt": [{"content": "hi"}]}, "an object with a 'role'"),
        ({**SUM, "prompt": ["hi"]}, "an object with a 'role'"),
        ({**SUM, "prompt": [{"role": "user"}]}, "must have 'content'"),
        (without("prompt"), "no column 'prompt'; it has data_source"),
        (without("data_source"), "no column 'data_source'"),
        (without("reward_model"), "no column 'reward_model'"),
        ({**SUM, "data_source": 3}, "'data_source' must be a non-empty text, got 3"),
        ({**SUM, "reward_model": {"style": "rule"}}, "with 'ground_truth'"),
        ({**SUM, "extra_info": "index 3"}, "'extra_info' must be an object or null"),
        ({**SUM, "agent_name": 3}, "'agent_name' must be a text or null"),
        ("[1, 2", "not valid JSON"),
        ("3", "expected an object, got int"),
        ('{"prompt": "3+4=",', "not valid JSON"),
        ("\ud800".encode("utf-8", "surrogatepass").decode("latin-1"), "not valid JSON"),
    ],
)
def test_a_row_that_cannot_be_used_is_refused_by_file_and_row(tmp_path: Path, row: Any, said: str) -> None:
    file = lines(tmp_path / "bad.jsonl", SUM, CHAT, row)
    with pytest.raises(DataError) as refused:
        load_prompts(file)
    assert str(refused.value).startswith(f"{file}, row 3")
    assert said in str(refused.value)


def test_files_that_cannot_be_read_are_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"none\.jsonl: no such file"):
        load_prompts(str(tmp_path / "none.jsonl"))
    (tmp_path / "a.csv").write_text("prompt")
    with pytest.raises(DataError, match=r"a\.csv: expected a file that ends in \.parquet"):
        load_prompts(str(tmp_path / "a.csv"))
    (tmp_path / "a.parquet").write_text("not parquet")
    with pytest.raises(DataError, match=r"a\.parquet: not a readable parquet file"):
        load_prompts(str(tmp_path / "a.parquet"))
    (tmp_path / "a.json").write_text("[{},")
    with pytest.raises(DataError, match=r"a\.json: not valid JSON"):
        load_prompts(str(tmp_path / "a.json"))


def test_bad_utf8_is_refused_by_row(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_bytes(json.dumps(SUM).encode() + b'\n{"prompt": "\xff"}\n')
    with pytest.raises(DataError, match="row 2: not valid JSON"):
        load_prompts(str(tmp_path / "a.jsonl"))


def test_overlong_prompts_are_left_out_with_their_indices_kept() -> None:
    rows = [PromptRow(prompt="x" * length, data_source="d", index=index) for index, length in enumerate((2, 9, 3))]
    assert [row.index for row in within_length(rows, len, 3)] == [0, 2]
    with pytest.raises(DataError, match="max_prompt_length=1"):
        within_length(rows, len, 1)


def test_foreign_values_become_plain_ones() -> None:
    value: dict[str, Any] = plain({"a": np.float32(0.5), "b": np.array([[1, 2]]), "c": (np.int64(3), None), 4: np.array("x")})
    assert value == {"a": 0.5, "b": [[1, 2]], "c": [3, None], "4": "x"}
    assert type(value["c"][0]) is int
    assert missing(None)
    assert missing(float("nan"))
    assert [missing(0), missing(0.0), missing(""), missing({})] == [False] * 4
