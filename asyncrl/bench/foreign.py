"""Interpreters that a benchmark starts, measured processes and peers alike."""

import asyncio
import os
from collections.abc import Sequence
from pathlib import Path

from asyncrl.errors import AsyncRLError

LAUNCH_SECONDS = 300.0


class BenchFailed(AsyncRLError):
    """A measured process did not end well."""


async def run_python(folder: Path, command: Sequence[str], threads: int) -> str:
    """Run a command to its end; return what it printed. Raises BenchFailed with its last lines."""
    # The children run elsewhere; they import this very package.
    environment = {
        **os.environ,
        "PYTHONPATH": str(Path(__file__).parents[2]),
        "OMP_NUM_THREADS": str(threads),
        "THREADS": str(threads),
        "HF_HUB_OFFLINE": "1",
    }
    process = await asyncio.create_subprocess_exec(
        *command, cwd=folder, env=environment, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    try:
        async with asyncio.timeout(LAUNCH_SECONDS):
            output, errors = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    if process.returncode != 0:
        raise BenchFailed(f"{' '.join(command[:4])} ended with {process.returncode}: {errors.decode()[-2000:]}")
    return output.decode()
