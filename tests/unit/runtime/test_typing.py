"""Type checkers see the arguments and the result of a call."""

from pathlib import Path

import pytest
from mypy import api

from tests.unit.runtime.conftest import ROOT

SNIPPET = """
from collections.abc import AsyncIterator
from asyncrl.runtime import Actor, ActorGroup, ActorRef, endpoint

class Counter(Actor):
    @endpoint
    async def add(self, n: int) -> int:
        return n
    @endpoint(idempotent=True)
    def text(self, n: int) -> str:
        return ""
    @endpoint
    async def items(self, n: int) -> AsyncIterator[bytes]:
        yield b""

async def good(ref: ActorRef[Counter], group: ActorGroup[Counter]) -> None:
    reveal_type(await ref.call(Counter.add, 2))
    reveal_type(await ref.with_deadline(3).call(Counter.text, n=2))
    reveal_type(await group.call_all(Counter.add, 2))
    reveal_type(await group.call_each(Counter.add, [(1,), (2,)]))
    async for item in ref.stream(Counter.items, 3):
        reveal_type(item)

async def bad(ref: ActorRef[Counter]) -> None:
    await ref.call(Counter.add, "two")
    await ref.call(Counter.add, m=2)
    await ref.tell(Counter.add)
    text: str = await ref.call(Counter.add, 2)
"""


@pytest.mark.timeout(120)
def test_mypy_infers_results_and_rejects_wrong_arguments(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "snippet.py"
    path.write_text(SNIPPET)
    monkeypatch.setenv("MYPYPATH", ROOT)
    monkeypatch.chdir(ROOT)
    out, _, _ = api.run(["--strict", "--hide-error-context", "--no-error-summary", "--cache-dir", f"{ROOT}/.mypy_cache", str(path)])
    lines = out.splitlines()
    assert [line.split('"')[1] for line in lines if "Revealed" in line] == ["int", "str", "list[int]", "list[int]", "bytes"]
    start = SNIPPET.splitlines().index("async def bad(ref: ActorRef[Counter]) -> None:") + 1
    wrong = sorted({int(line.split(":")[1]) for line in lines if ": error:" in line})
    assert wrong == [start + 1, start + 2, start + 3, start + 4]
