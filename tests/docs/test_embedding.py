"""The embedding examples run as they stand on their page, where nothing of the trainer can be imported."""

import asyncio
import contextlib
import json
import os
import re
import shlex
import signal
import sys
from collections.abc import AsyncIterator, Mapping
from pathlib import Path

import pytest

from tests.docs.pages import DOCS, ROOT, blocks, commands, shows

PAGE = DOCS / "embedding.md"
EXAMPLES = {block.file: block for block in blocks(PAGE) if block.language == "python"}
LINES = [line for block in blocks(PAGE) if block.language == "bash" for line in commands(block)]
_, READS, REFUSED, LOGGED = (block.text for block in blocks(PAGE) if block.language == "text")
EXAMPLE_HOST = "192.0.2.7:29600"

ALONE = """
import sys

class Refusing:
    def find_spec(self, name, path=None, target=None):
        first, _, rest = name.partition(".")
        foreign = first in {"torch", "numpy", "hydra", "omegaconf", "transformers"}
        if foreign or (first == "asyncrl" and rest.split(".")[0] not in {"", "runtime", "errors"}):
            raise ImportError(f"{name} belongs to the trainer")
        return None

sys.meta_path.insert(0, Refusing())
"""
"""What every interpreter with the examples' folder on its path runs at its start, children included."""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with the examples, and nothing to import but the runtime."""
    for name, block in EXAMPLES.items():
        (tmp_path / name).write_text(block.text, encoding="utf-8")
    (tmp_path / "sitecustomize.py").write_text(ALONE, encoding="utf-8")
    return tmp_path


@contextlib.asynccontextmanager
async def program(folder: Path, line: str, changed: Mapping[str, str] | None = None) -> AsyncIterator[asyncio.subprocess.Process]:
    """A command line of the page, some of its words changed, in the folder; interrupted at the end of the block."""
    for old, new in (changed or {}).items():
        assert old in line
        line = line.replace(old, new)
    head, *words = shlex.split(line)
    command = [sys.executable, *([] if head == "python" else ["-m", head]), *words]
    environment = {**os.environ, "PYTHONPATH": f"{folder}:{ROOT}", "PYTHONUNBUFFERED": "1"}
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(*command, cwd=folder, env=environment, stdout=pipe, stderr=pipe)
    try:
        yield process
        if process.returncode is None:
            process.send_signal(signal.SIGINT)
            await process.wait()
    finally:
        if process.returncode is None:
            process.kill()
        # It reads what is left, and closes the pipes.
        await process.communicate()


async def said(folder: Path, line: str, changed: Mapping[str, str] | None = None) -> tuple[int | None, str, str]:
    """Exit code, standard output and standard error of a command line that ends by itself."""
    async with program(folder, line, changed) as process:
        output, errors = await process.communicate()
    return process.returncode, output.decode(), errors.decode()


async def until(reader: asyncio.StreamReader | None, pattern: str) -> re.Match[str]:
    """The first match in a line that a program writes."""
    assert reader is not None
    lines = []
    async for line in reader:
        lines.append(line.decode())
        if found := re.search(pattern, lines[-1]):
            return found
    raise AssertionError(f"it ended without {pattern!r}: {''.join(lines)}")


def lines_with(head: str) -> list[str]:
    """The command lines of the page that begin with these words."""
    return [line for line in LINES if line.startswith(head)]


@contextlib.asynccontextmanager
async def get(port: int, target: str) -> AsyncIterator[AsyncIterator[bytes]]:
    """The chunks of an HTTP response, each as it was sent; the connection is cut at the end of the block."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)

    async def chunks() -> AsyncIterator[bytes]:
        while size := int(await reader.readline(), 16):
            chunk = await reader.readexactly(size + 2)
            yield chunk[:-2]

    try:
        writer.write(f"GET {target} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
        head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
        assert head.startswith("http/1.1 200")
        length = re.search(r"content-length: (\d+)", head)
        yield whole(await reader.readexactly(int(length.group(1)))) if length else chunks()
    finally:
        writer.transport.abort()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()


async def whole(body: bytes) -> AsyncIterator[bytes]:
    """A body that came in one piece."""
    yield body


def target_of(line: str) -> str:
    """Path and query of a curl line."""
    (url,) = [word for word in shlex.split(line) if word.startswith("http://")]
    return url.removeprefix("http://127.0.0.1:8000")


def test_every_example_of_the_page_is_run_here() -> None:
    assert list(EXAMPLES) == ["generator.py", "server.py", "pool_worker.py", "pool.py", "two_hosts.py"]


async def test_nothing_of_the_trainer_can_be_imported_here(folder: Path) -> None:
    for name in ("torch", "numpy", "asyncrl.config", "asyncrl.trainer"):
        code, _, errors = await said(folder, f"python -c 'import {name}'")
        assert code == 1
        assert "belongs to the trainer" in errors


async def test_the_server_streams_tokens_and_a_client_that_leaves_cancels_the_generator(folder: Path) -> None:
    (serve,), (generate, drain) = lines_with("uvicorn"), lines_with("curl")
    async with program(folder, serve, {"8000": "0"}) as server:
        port = int((await until(server.stderr, r"running on http://127\.0\.0\.1:(\d+)")).group(1))
        async with get(port, target_of(generate)) as chunks:
            assert [chunk.decode() async for chunk in chunks] == ["to ", "be ", "or ", "not "] * 5
        async with get(port, target_of(generate).replace("n=20", "n=1000000000")) as chunks:
            # It will not end in years: what comes, comes before the end.
            assert [await anext(chunks) for _ in range(5)] == [b"to ", b"be ", b"or ", b"not ", b"to "]
        async with get(port, target_of(drain)) as chunks:
            first, second = json.loads(await anext(chunks))
        assert first == 20
        assert 5 <= second < 1000000000
    assert server.returncode in (0, -signal.SIGINT)


async def test_the_pool_answers_the_job_of_a_killed_worker_and_goes_on(folder: Path) -> None:
    code, output, errors = await said(folder, "python pool.py")
    assert code == 0, errors
    assert shows(EXAMPLES["pool.py"].output or "", output), output
    assert "worker-2 (pid" in errors


async def test_two_hosts_find_each_other_by_an_address_and_a_key(folder: Path) -> None:
    (folder / "key").write_bytes(os.urandom(32))
    (folder / "other").write_bytes(os.urandom(32))
    (serve, operate, read) = lines_with("python two_hosts.py")
    async with program(folder, serve, {EXAMPLE_HOST: "127.0.0.1:*"}) as store:
        here = {EXAMPLE_HOST: (await until(store.stdout, r"^the store is at tcp://(127\.0\.0\.1:\d+)$")).group(1)}
        assert await said(folder, operate, here) == (0, "hello from operator\n", "")
        assert await said(folder, read, here) == (0, READS, "")
        code, output, errors = await said(folder, read.removesuffix("key") + "other", here)
        assert (code, output) == (1, "")
        assert errors == REFUSED.replace(EXAMPLE_HOST, here[EXAMPLE_HOST])
        assert (await until(store.stderr, re.escape(LOGGED.strip()))).string
    assert store.returncode == 0
