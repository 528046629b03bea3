"""``asyncrl bench NAME [--json]``: one object a line on standard output, or a table; progress on standard error."""

import argparse
import os
import sys
import time
from collections.abc import Awaitable, Callable, Sequence
from functools import partial

from asyncrl.bench.algorithms import algorithms
from asyncrl.bench.modes import modes
from asyncrl.bench.queue import queue
from asyncrl.bench.report import Report
from asyncrl.bench.rounds import Progress
from asyncrl.bench.rpc import RpcWork, rpc
from asyncrl.bench.step import StepWork, step
from asyncrl.errors import AsyncRLError
from asyncrl.runtime.host import run_main

Bench = Callable[[Progress], Awaitable[Report]]

NAMES: dict[str, Bench] = {"rpc": rpc, "queue": queue, "algorithms": algorithms, "step": step, "modes": modes}
"""Every benchmark."""
ALL = "all"


def main(arguments: Sequence[str]) -> int:
    """Run one benchmark, or all one after the other; return the exit code."""
    parser = argparse.ArgumentParser(prog="asyncrl bench", description=__doc__, allow_abbrev=False)
    parser.add_argument("name", choices=[*NAMES, ALL], metavar="NAME", help=f"one of {', '.join([*NAMES, ALL])}")
    parser.add_argument("--json", action="store_true", help="one JSON object a line instead of tables")
    parser.add_argument(
        "--peer-python", metavar="PATH", help="an interpreter with the peers: TRL for step; ray, xoscar, distributed for rpc"
    )
    given = parser.parse_args(arguments)
    benches = dict(NAMES)
    if given.peer_python:
        benches["step"] = partial(step, work=StepWork(peer_python=given.peer_python))
        benches["rpc"] = partial(rpc, work=RpcWork(peer_python=given.peer_python))
    try:
        for name in NAMES if given.name == ALL else [given.name]:
            show(measured(name, benches[name]), given.json)
    except AsyncRLError as error:
        print(f"asyncrl bench: {error}", file=sys.stderr)
        return 1
    return 0


def measured(name: str, bench: Bench) -> Report:
    """The report of one benchmark, run on an event loop of its own."""
    start = time.monotonic()
    report = run_main(partial(_measure, bench))
    say(f"{name}: done in {time.monotonic() - start:.1f} s, load average {os.getloadavg()[0]:.1f}\n")
    return report


async def _measure(bench: Bench) -> Report:
    return await bench(say)


def show(report: Report, as_json: bool) -> None:
    """Print a report to standard output."""
    print(report.json() if as_json else report.table(), flush=True)


def say(text: str) -> None:
    """Replace the progress line; off a terminal only whole lines are written."""
    if sys.stderr.isatty():
        print(f"\r\x1b[Kasyncrl bench {text}", end="", file=sys.stderr, flush=True)
    elif text.endswith("\n"):
        print(f"asyncrl bench {text}", end="", file=sys.stderr, flush=True)
