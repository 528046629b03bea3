"""A launched run that a test watches while it lives: its output as it comes, its processes, and their ends."""

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import IO, Any

import psutil

from tests.processes.launching import ROOT, environment

TINY = (
    "data.train_batch_size=4",
    "actor_rollout_ref.rollout.n=4",
    "actor_rollout_ref.actor.ppo_mini_batch_size=2",
    "trainer.val_before_train=false",
    "trainer.test_freq=-1",
    "trainer.logger=[console,file]",
)
"""Options that make a step of the quickstart a fraction of a second."""


class LiveRun:
    """A launched run whose output is read as it comes. Its processes are told by a ``TMPDIR`` of their own, which all inherit."""

    def __init__(self, command: Sequence[str], folder: Path, scratch: str) -> None:
        self.run_folder, self.scratch = folder, scratch
        self.stdout: list[str] = []
        self.stderr: list[str] = []
        self._news = threading.Condition()
        self.process = subprocess.Popen(
            command,
            cwd=ROOT,
            env=environment() | {"TMPDIR": scratch},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        assert self.process.stdout is not None
        assert self.process.stderr is not None
        pairs = ((self.process.stdout, self.stdout), (self.process.stderr, self.stderr))
        self._readers = [threading.Thread(target=self._read, args=pair) for pair in pairs]
        for reader in self._readers:
            reader.start()

    def _read(self, pipe: IO[str], lines: list[str]) -> None:
        with pipe:
            for line in pipe:
                with self._news:
                    lines.append(line.rstrip("\n"))
                    self._news.notify_all()
        with self._news:
            self._news.notify_all()

    def wait_for_line(self, wanted: Callable[[str], bool], seconds: float = 90.0) -> str:
        """The first line of standard output that is ``wanted``. Fails with the whole output when none comes."""

        def found() -> str | None:
            return next((line for line in self.stdout if wanted(line)), None)

        with self._news:
            self._news.wait_for(lambda: found() is not None or not self._readers[0].is_alive(), seconds)
            line = found()
        assert line is not None, self.output()
        return line

    def wait_for_step(self) -> str:
        """The first line of a trained step."""
        return self.wait_for_line(lambda line: line.startswith("step ") and "| reward" in line)

    def processes(self) -> list[psutil.Process]:
        """All processes of the run that are alive."""
        found = []
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                if process.environ().get("TMPDIR") == self.scratch and process.status() != psutil.STATUS_ZOMBIE:
                    found.append(process)
        return found

    def pid_of(self, name: str) -> int:
        """The process "rank 0", "agent-0", "supervisor", ... or "the torchrun agent"."""
        if name == "the torchrun agent":
            return self.process.pid
        for process in self.processes():
            rank = process.environ().get("RANK")
            if f"asyncrl:{name}" in process.cmdline() or (rank is not None and name == f"rank {rank}"):
                return process.pid
        raise LookupError(f"no {name} in {self.processes()}")

    def seconds_to_end(self, limit: float) -> float:
        """Wait until no process of the run is left; return how long that took. Fails when some are left after ``limit``."""
        began = time.monotonic()
        watched = [process for process in self.processes() if process.pid != self.process.pid]
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(limit)
        psutil.wait_procs(watched, timeout=max(0.0, began + limit - time.monotonic()))
        took = time.monotonic() - began
        left = self.processes()
        assert not left, f"{left} left after {took:.1f} s\n{self.output()}"
        self.join_readers()
        return took

    def join_readers(self) -> None:
        """All output is read."""
        for reader in self._readers:
            reader.join(5.0)

    @property
    def own_lines(self) -> list[str]:
        """What asyncrl itself said on standard error."""
        return [line for line in self.stderr if line.startswith("asyncrl:")]

    @property
    def first_cause(self) -> str:
        """The cause in the run folder."""
        return str(json.loads((self.run_folder / "first_cause.json").read_text())["cause"])

    @property
    def metrics(self) -> list[dict[str, Any]]:
        """The numbers of each step."""
        return [json.loads(line) for line in (self.run_folder / "metrics.jsonl").read_text().splitlines()]

    def output(self) -> str:
        """Everything that was printed, for messages."""
        return "\n".join([*self.stdout[-40:], "--- stderr ---", *self.stderr[-80:]])

    def check_nothing_left(self) -> None:
        """No process, no folder of sockets."""
        assert not self.processes()
        assert [name for name in os.listdir(self.scratch) if name.startswith("asyncrl-")] == []

    def check_cause(self, cause: str) -> None:
        """``cause`` is the first thing said, before torchrun's report; it is said once, and kept in the run folder."""
        said = [line for line in self.own_lines if not line.startswith("asyncrl: the run folder")]
        assert len(said) == 1, self.output()
        assert said[0].startswith(f"asyncrl: {cause}"), self.output()
        reports = [number for number, line in enumerate(self.stderr) if "Traceback" in line or "Error" in line]
        assert all(number >= self.stderr.index(said[0]) for number in reports), self.output()
        assert self.first_cause.startswith(cause)


@contextlib.contextmanager
def live_run(folder: Path, *options: str, command: Sequence[str] | None = None) -> Iterator[LiveRun]:
    """Start ``asyncrl train config=quickstart`` with small batches (or ``command``); whatever is left at the end is killed."""
    # A short path: sockets lie below it.
    scratch = tempfile.mkdtemp(prefix="arl")
    head = command or [sys.executable, "-m", "asyncrl.cli", "train"]
    run = LiveRun([*head, "config=quickstart", f"trainer.default_local_dir={folder / 'run'}", *TINY, *options], folder / "run", scratch)
    try:
        yield run
    finally:
        for process in run.processes():
            with contextlib.suppress(psutil.NoSuchProcess):
                process.send_signal(signal.SIGKILL)
        run.process.wait()
        run.join_readers()
        shutil.rmtree(scratch, ignore_errors=True)
