"""Every Python block runs, every command line would start."""

import asyncio
import importlib.util
import os
import re
import shlex
import sys
from pathlib import Path

import pytest

from asyncrl import cli
from asyncrl.bench.command import NAMES
from asyncrl.config.load import load_config
from tests.docs.pages import ROOT, Block, commands, of_language

SECONDS = 30.0
SHOWN = {"tail", "cat", "tensorboard", ".", "head", "chmod"}
"""Commands that only look at files."""

COMMANDS = [(block.place, line) for block in of_language("bash") for line in commands(block)]


async def run_block(folder: Path, number: int, block: Block) -> str:
    """Run one block as a script in ``folder``; return what it wrote to standard error, "" for success."""
    script = folder / (block.file or f"block_{number}.py")
    script.write_text(block.text, encoding="utf-8")
    environment = {**os.environ, "PYTHONPATH": f"{folder}:{ROOT}", "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    process = await asyncio.create_subprocess_exec(
        sys.executable, script.name, cwd=folder, env=environment, stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.PIPE
    )
    try:
        async with asyncio.timeout(SECONDS):
            _, said = await process.communicate()
    except TimeoutError:
        process.kill()
        await process.wait()
        return f"{block.place} did not end within {SECONDS:g} s"
    return "" if process.returncode == 0 else f"{block.place}: {said.decode()[-2000:]}"


async def test_every_python_block_runs(tmp_path: Path) -> None:
    one_page_at_a_time: dict[Path, list[Block]] = {}
    for block in of_language("python"):
        one_page_at_a_time.setdefault(block.page, []).append(block)
    assert sum(map(len, one_page_at_a_time.values())) >= 12

    async def run_page(page: Path, found: list[Block]) -> list[str]:
        folder = tmp_path / page.stem
        folder.mkdir()
        return [await run_block(folder, number, block) for number, block in enumerate(found)]

    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(run_page(page, found)) for page, found in one_page_at_a_time.items()]
    failures = [failure for task in tasks for failure in task.result() if failure]
    assert not failures, "\n\n".join(failures)


def options_of(line: str) -> list[str]:
    """The words after the command, without its switches."""
    words = shlex.split(line)
    start = next(number for number, word in enumerate(words) if word.startswith("config="))
    return [word for word in words[start:] if "=" in word]


def make_targets() -> set[str]:
    return set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))


@pytest.mark.parametrize(("place", "line"), COMMANDS, ids=[place for place, _ in COMMANDS])
def test_every_command_line_would_start(place: str, line: str, capsys: pytest.CaptureFixture[str]) -> None:
    words = shlex.split(line)
    if words[:2] == ["asyncrl", "plan"]:
        assert cli.main(words[1:]) == 0, capsys.readouterr().err
    elif words[:2] == ["asyncrl", "train"] or (words[0] == "torchrun" and words[words.index("-m") + 1] == "asyncrl.launch"):
        assert load_config(options_of(line)).config.data.train_files
    elif words[:2] == ["asyncrl", "export"]:
        assert cli.command_line().parse_args(words[1:]).to
    elif words[:2] == ["asyncrl", "bench"]:
        assert words[2] in NAMES
    elif words[0] == "make":
        assert set(words[1:]) <= make_targets()
    elif words[:2] == ["python", "-m"]:
        assert importlib.util.find_spec(words[2]) is not None
    else:
        assert words[0] in SHOWN, f"{place}: say in this test how to check {words[0]}"


def test_every_shipped_command_is_shown() -> None:
    shown = {" ".join(shlex.split(line)[:2]) for _, line in COMMANDS}
    assert {"make quickstart", "make test", "make check", "asyncrl plan", "asyncrl train"} <= shown
