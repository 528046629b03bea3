"""Ranks that outlive a run, for tests that are about what a run computes and not about how it begins and ends."""

import asyncio
import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from asyncrl.config.load import load_config
from asyncrl.launch.inline import open_session
from tests.processes import scenario
from tests.processes.launching import ROOT, environment, torchrun
from tests.processes.warm_rank import Job

START_SECONDS = 150.0
RUN_SECONDS = 150.0
LEAVE_SECONDS = 20.0


class WarmRanks:
    """torchrun with ``count`` ranks that wait for jobs."""

    def __init__(self, count: int) -> None:
        self.count = count
        # A short path: a socket lies below it.
        self._folder = Path(tempfile.mkdtemp(prefix="arl"))
        self._log = self._folder / "log"
        self._connections: list[socket.socket] = []
        with socket.socket(socket.AF_UNIX) as listener, self._log.open("wb") as log:
            listener.bind(str(self._folder / "jobs"))
            listener.listen()
            listener.settimeout(START_SECONDS)
            command = torchrun(count, "tests.processes.warm_rank", str(self._folder / "jobs"))
            self._process = subprocess.Popen(
                command, cwd=ROOT, env=environment(), stdout=log, stderr=subprocess.STDOUT, start_new_session=True
            )
            try:
                while len(self._connections) < count:
                    self._connections.append(listener.accept()[0])
            except BaseException:
                self.close()
                raise

    def run(self, options: Sequence[str], spec: Path | None = None, recorded: bool = False) -> str:
        """Run a job to its end; return what it printed. Fails with the output when the run does. See ``Job``."""
        begun = self._log.stat().st_size
        job = msgspec.json.encode(Job(list(options), None if spec is None else str(spec), recorded)) + b"\n"
        try:
            for connection in self._connections:
                connection.settimeout(RUN_SECONDS)
                connection.sendall(job)
            ended = all(connection.recv(5) for connection in self._connections)
            printed = self._log.read_bytes()[begun:].decode()
        except BaseException:
            self.close()
            raise
        if not ended:
            self.close()
            raise AssertionError(printed[-6000:])
        return printed

    @property
    def alive(self) -> bool:
        """Whether there are ranks."""
        return bool(self._connections)

    def close(self) -> None:
        """Let the ranks go; whoever stays is killed."""
        for connection in self._connections:
            connection.close()
        self._connections.clear()
        try:
            self._process.wait(LEAVE_SECONDS)
        except subprocess.TimeoutExpired:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
        shutil.rmtree(self._folder, ignore_errors=True)


_waiting: list[WarmRanks] = []
"""At most one."""


def warm_ranks(count: int) -> WarmRanks:
    """As many ranks, started unless they wait already."""
    if _waiting and _waiting[0].alive and _waiting[0].count == count:
        return _waiting[0]
    close_warm_ranks()
    _waiting.append(WarmRanks(count))
    return _waiting[0]


def close_warm_ranks() -> None:
    """Nobody waits any more."""
    while _waiting:
        ranks = _waiting.pop()
        if ranks.alive:
            ranks.close()


def run_warm(folder: Path, *options: str) -> str:
    """Run the quickstart on two waiting ranks into a run folder, as torchrun would; return what it printed."""
    return warm_ranks(2).run(["config=quickstart", f"trainer.default_local_dir={folder}", *options])


def run_scenario(folder: Path, ranks: int, steps: list[Any], *options: str) -> list[dict[str, Any]]:
    """Run steps of ``tests.processes.scenario``; return the record of each. Weights lie beside as ``weights_K.safetensors``.

    One rank runs in this process, which gives the same numbers (``test_inline``); more are waiting ranks.
    """
    spec = {"out": str(folder), "steps": steps}
    given = ["config=quickstart", f"trainer.n_gpus_per_node={ranks}", f"trainer.default_local_dir={folder / 'run'}", *options]
    if ranks == 1:
        asyncio.run(_inline(spec, given))
    else:
        file = folder / "spec.json"
        file.write_text(json.dumps(spec))
        warm_ranks(ranks).run(given, file)
    return [json.loads((folder / f"step_{number + 1}.json").read_text()) for number in range(len(steps))]


async def _inline(spec: dict[str, Any], options: list[str]) -> None:
    async with open_session(load_config([*options, "debug=inline"])) as session:
        await scenario.run_scenario(spec, session)
