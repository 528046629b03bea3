"""Reward functions found by path and name, and the built-in rules."""

from pathlib import Path

import pytest

from asyncrl.errors import ConfigError, RewardError
from asyncrl.rewards.load import load_function, load_reward
from asyncrl.rewards.pool import WorkerPool
from asyncrl.rewards.rules import DEFAULT_RULES, check_sources, default_compute_score
from asyncrl.trajectory import RewardItem

SOURCE = """
from dataclasses import dataclass

WEIGHT = 2.0

@dataclass
class Verdict:
    score: float

def compute_score(data_source, solution_str, ground_truth, extra_info, scale=1.0):
    return Verdict(scale * (solution_str == ground_truth)).score

def short(solution_str):
    return 0.0
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    (tmp_path / "my reward.py").write_text(SOURCE)
    return tmp_path / "my reward.py"


def item(source: str = "mine", text: str = "7") -> RewardItem:
    return RewardItem(data_source=source, solution_str=text, ground_truth="7")


async def test_a_function_of_a_file_judges_with_its_further_arguments(file: Path) -> None:
    pool = WorkerPool(1, 10.0)
    reward = load_reward(str(file), "compute_score", pool, {"scale": 3.0})
    assert [(await reward.score(item(text=text))).score for text in ("7", "8")] == [3.0, 0.0]
    pool.close()


async def test_a_function_of_an_installed_module_is_named_with_pkg() -> None:
    pool = WorkerPool(1, 10.0)
    reward = load_reward("pkg://asyncrl.quickstart.reward", "compute_score", pool)
    assert (await reward.score(item())).score == 1.0
    pool.close()


def test_two_files_of_one_name_do_not_mix(tmp_path: Path) -> None:
    for folder, value in (("a", 1), ("b", 2)):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "reward.py").write_text(f"def f(): return {value}")
    assert [load_function(str(tmp_path / folder / "reward.py"), "f")() for folder in "ab"] == [1, 2]


def test_a_name_that_is_not_there_is_refused_with_those_that_are(file: Path) -> None:
    with pytest.raises(ConfigError, match=r"custom_reward_function\.name: got 'compute'.*it has .*compute_score, short"):
        load_function(str(file), "compute")


def test_a_name_that_is_no_function_is_refused(file: Path) -> None:
    with pytest.raises(ConfigError, match="it is a float"):
        load_function(str(file), "WEIGHT")


def test_a_function_of_another_form_is_refused(file: Path) -> None:
    with pytest.raises(ConfigError, match="called with data_source, solution_str, ground_truth, extra_info by keyword"):
        load_reward(str(file), "short", WorkerPool(1, 1.0))


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("none.py", None, "no such file"),
        ("reward.txt", "x = 1", "expected a Python file"),
        ("broken.py", "def f(:", "running it raised SyntaxError"),
        ("missing.py", "import no_such_module_at_all", "running it raised ModuleNotFoundError: No module named 'no_such_module_at_all'"),
        ("raises.py", "raise ValueError('not today')", "running it raised ValueError: not today"),
    ],
)
def test_a_file_that_cannot_be_used_is_refused_by_its_key(tmp_path: Path, name: str, content: str | None, said: str) -> None:
    if content is not None:
        (tmp_path / name).write_text(content)
    with pytest.raises(ConfigError) as refused:
        load_function(str(tmp_path / name), "f")
    assert refused.value.key == "reward.custom_reward_function.path"
    assert said in str(refused.value)


def test_a_module_that_is_not_installed_is_refused() -> None:
    with pytest.raises(ConfigError, match="cannot be imported: ModuleNotFoundError"):
        load_function("pkg://asyncrl.no_such_module", "f")


async def test_without_a_path_the_rule_of_the_data_source_judges() -> None:
    pool = WorkerPool(1, 10.0)
    reward = load_reward(None, "compute_score", pool)
    assert (await reward.score(item("exact_match", " 7\n"))).score == 1.0
    assert (await reward.score(item("exact_match/sums", "77"))).score == 0.0
    unknown = await reward.score(item("gsm9k"))
    assert unknown.score is None
    assert "no built-in rule judges data_source 'gsm9k' (known: exact_match)" in unknown.error
    pool.close()


def test_a_data_source_without_a_rule_is_refused_before_the_run() -> None:
    check_sources(["exact_match", "exact_match/sums"])
    with pytest.raises(ConfigError, match="'exact_matches'"):
        check_sources(["exact_match", "exact_matches"])
    with pytest.raises(RewardError, match="'nobody'"):
        default_compute_score("nobody", "7", "7")
    assert list(DEFAULT_RULES) == ["exact_match"]
