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
from tests.docs.pages import DOCS, ROOT, Block, commands, of_language, shows

SECONDS = 100.0
"""A block hangs if it takes longer, also on a busy machine."""
SHOWN = {"tail", "cat", "tensorboard", ".", "head", "chmod", "(umask"}
"""Commands that only look at files, or make one."""
ELSEWHERE = DOCS / "embedding.md"
"""Its programs take arguments, and talk to each other: ``test_embedding`` starts them by the lines of the page."""

COMMANDS = [(block.place, line) for block in of_language("bash") for line in commands(block)]


AT_A_TIME = 2
"""Pages whose blocks run at the same time: the time of a block is its own, and not that of all others."""


async def run_block(folder: Path, number: int, block: Block) -> str:
    """Run one block as a script in ``folder``; return what is wrong with its end or its output, "" for success."""
    script = folder / (block.file or f"block_{number}.py")
    script.write_text(block.text, encoding="utf-8")
    environment = {**os.environ, "PYTHONPATH": f"{folder}:{ROOT}", "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    process = await asyncio.create_subprocess_exec(
        sys.executable, script.name, cwd=folder, env=environment, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    try:
        async with asyncio.timeout(SECONDS):
            printed, said = await process.communicate()
    except TimeoutError:
        process.kill()
        await process.wait()
        return f"{block.place} did not end within {SECONDS:g} s"
    if process.returncode != 0:
        return f"{block.place}: {said.decode()[-2000:]}"
    if block.output is not None and not shows(block.output, printed.decode()):
        return f"{block.place} prints\n{printed.decode()[-2000:]}"
    return ""


@pytest.mark.timeout(240)
async def test_every_python_block_runs_and_prints_what_its_page_says(tmp_path: Path) -> None:
    one_page_at_a_time: dict[Path, list[Block]] = {}
    for block in of_language("python"):
        if block.page != ELSEWHERE:
            one_page_at_a_time.setdefault(block.page, []).append(block)
    assert sum(map(len, one_page_at_a_time.values())) >= 12

    turns = asyncio.Semaphore(AT_A_TIME)

    async def run_page(page: Path, found: list[Block]) -> list[str]:
        folder = tmp_path / page.stem
        folder.mkdir()
        async with turns:
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
    if place.startswith("docs/embedding.md:"):
        assert words[0] in {*SHOWN, "uvicorn", "curl", "python"}
    elif words[:2] == ["asyncrl", "plan"]:
        assert cli.main(words[1:]) == 0, capsys.readouterr().err
    elif words[:2] == ["asyncrl", "train"] or (words[0] == "torchrun" and words[words.index("-m") + 1] == "asyncrl.launch"):
        assert load_config(options_of(line)).config.data.train_files
    elif words[:2] == ["asyncrl", "export"]:
        assert cli.command_line().parse_args(words[1:]).to
    elif words[:2] == ["asyncrl", "trace"]:
        assert cli.command_line().parse_args(words[1:]).key
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
