"""Starting real runs from tests."""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def environment() -> dict[str, str]:
    """The environment of a launched run: one thread a process, no hub."""
    return {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "PYTHONUNBUFFERED": "1"}


def torchrun(ranks: int, module: str, *arguments: str) -> list[str]:
    """The command line that runs ``module`` on ``ranks`` ranks of this machine."""
    return [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks), "-m", module, *arguments]


def run_quickstart(folder: Path, *options: str) -> str:
    """Run ``asyncrl train config=quickstart`` into a run folder to its end; return what it printed."""
    return run_train("config=quickstart", f"trainer.default_local_dir={folder}", *options)


def run_train(*options: str) -> str:
    """Run ``asyncrl train`` to its end; return what it printed."""
    command = [sys.executable, "-m", "asyncrl.cli", "train", *options]
    result = subprocess.run(command, cwd=ROOT, env=environment(), capture_output=True, text=True, timeout=1100)
    assert result.returncode == 0, result.stdout[-2000:] + result.stderr[-4000:]
    return result.stdout
