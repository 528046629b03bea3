"""Runs under torchrun: a launch in which one rank fails or blocks at a given place.

    torchrun … -m tests.processes.failing_rank MODE config=quickstart key=value …

MODE is ``build`` (rank 1 raises while it builds its models), ``endpoint`` (rank 1 raises when it trains) or ``blocked`` (the
device thread of rank 0 never comes back, as in a collective whose partner is silent; it says so first).
"""

import os
import sys
import threading
from typing import Any
from unittest import mock

from asyncrl.launch import __main__ as launch, roles
from asyncrl.workers.policy import PolicyWorker


def fail(*arguments: Any) -> Any:
    """Raise as a broken file would."""
    raise ValueError("the scripted failure")


def block(*arguments: Any) -> Any:
    """Never return."""
    print("blocked", flush=True)
    threading.Event().wait()


def main() -> int:
    """Entry of each rank."""
    mode, rank = sys.argv[1], os.environ["RANK"]
    if mode == "blocked" and rank == "0":
        mock.patch.object(roles, "build_models", block).start()
    if mode == "build" and rank == "1":
        mock.patch.object(roles, "build_models", fail).start()
    if mode == "endpoint" and rank == "1":
        mock.patch.object(PolicyWorker, "_update", fail).start()
    return launch.main(sys.argv[2:])


if __name__ == "__main__":
    sys.exit(main())
