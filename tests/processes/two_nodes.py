"""Two torchrun agents on this machine, each with a temporary folder, output and key file of its own: two nodes over 127.0.0.1."""

import contextlib
import os
import queue
import shutil
import signal
import socket
import sys
import tempfile
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

import psutil

from tests.processes.live_run import LiveRun


def make_key(path: Path) -> Path:
    """A key file as the recipe makes it."""
    path.write_bytes(os.urandom(32))
    path.chmod(0o600)
    return path


def free_port() -> int:
    """A port that nobody listens on."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


class TwoNodes:
    """The two agents. Their order is that of torchrun's node ranks, which are given by arrival."""

    def __init__(self, agents: Sequence[LiveRun]) -> None:
        self.agents = list(agents)

    def sort(self) -> tuple[LiveRun, LiveRun]:
        """Node 0 and node 1; both must have started their rank."""
        first = next(agent for agent in self.agents if any(process.environ().get("RANK") == "0" for process in agent.processes()))
        self.agents.sort(key=lambda agent: agent is not first)
        return self.agents[0], self.agents[1]

    def leader(self) -> tuple[LiveRun, LiveRun]:
        """Node 0 and node 1, once node 0 has trained a step."""
        found: queue.Queue[str] = queue.Queue()

        def look(agent: LiveRun) -> None:
            with contextlib.suppress(AssertionError):
                found.put(agent.wait_for_step())

        for agent in self.agents:
            threading.Thread(target=look, args=(agent,), daemon=True).start()
        try:
            found.get(timeout=90.0)
        except queue.Empty:
            raise AssertionError(self.output()) from None
        return self.sort()

    def processes(self) -> list[psutil.Process]:
        """All processes of both nodes, without the torchrun agents."""
        agents = [agent.process.pid for agent in self.agents]
        return [process for agent in self.agents for process in agent.processes() if process.pid not in agents]

    def seconds_to_end(self, limit: float) -> float:
        """Wait until nothing is left on either node; return the longer time."""
        took = self.agents[0].seconds_to_end(limit)
        return took + self.agents[1].seconds_to_end(max(0.1, limit - took))

    def output(self) -> str:
        """What both have printed."""
        return "\n=====\n".join(agent.output() for agent in self.agents)

    def check_nothing_left(self) -> None:
        """No process, no folder of sockets, on either."""
        for agent in self.agents:
            agent.check_nothing_left()


def command(port: int, key: Path | None) -> list[str]:
    """What is typed on each node."""
    key_file = [] if key is None else [f"ASYNCRL_KEY_FILE={key}"]
    rendezvous = ["--rdzv-backend", "c10d", "--rdzv-endpoint", f"127.0.0.1:{port}", "--rdzv-id", f"job-{port}"]
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--nnodes", "2", "--nproc-per-node", "1", *rendezvous]
    options = ["config=quickstart", "trainer.nnodes=2", "trainer.n_gpus_per_node=1"]
    return ["env", *key_file, *torchrun, "-m", "asyncrl.launch", *options]


@contextlib.contextmanager
def two_nodes(folder: Path, keys: Sequence[Path | None], *options: str) -> Iterator[TwoNodes]:
    """Start the quickstart on two nodes with these key files; whatever is left at the end is killed."""
    port, scratches = free_port(), [tempfile.mkdtemp(prefix="arl") for _ in keys]
    given = [f"trainer.default_local_dir={folder / 'run'}", *options]
    agents = [LiveRun([*command(port, key), *given], folder / "run", scratch) for key, scratch in zip(keys, scratches, strict=True)]
    try:
        yield TwoNodes(agents)
    finally:
        for agent in agents:
            for process in agent.processes():
                with contextlib.suppress(psutil.NoSuchProcess):
                    process.send_signal(signal.SIGKILL)
            agent.process.wait()
            agent.join_readers()
        for scratch in scratches:
            shutil.rmtree(scratch, ignore_errors=True)
