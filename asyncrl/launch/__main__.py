"""Entry of ``python -m asyncrl.launch``; torch is imported only when the configuration has been found good."""

import os
import signal
import sys
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from asyncrl.config.checks import check_world
from asyncrl.config.load import Loaded, load_config
from asyncrl.errors import ConfigError, DataError
from asyncrl.launch.environment import Place, check_one_node, check_platform
from asyncrl.launch.guard import Guard
from asyncrl.launch.preflight import preflight
from asyncrl.launch.refusal import refuse
from asyncrl.launch.run_folder import RunFolder
from asyncrl.runtime.host import RealHost, die_with_parent, run_main
from asyncrl.runtime.security import make_token, private_folder
from asyncrl.runtime.supervisor import SupervisorClient

CHILD_ENVIRONMENT = ("VIRTUAL_ENV", "PYTHONPATH", "PYTHONHASHSEED", "OMP_NUM_THREADS", "HF_HUB_OFFLINE", "TZ")
"""What agents, rewards and shards may see of this environment: no token, no credential."""

RANK_0_SECONDS = 20.0
"""How long a rank that was given a wrong configuration leaves the word to rank 0."""

if TYPE_CHECKING:
    from asyncrl.launch.session import Controller


def main(arguments: Sequence[str], controller: "Controller | None" = None) -> int:
    """Run this rank to the end of the run; return its exit code: 0, 1 for a failed run, 2 for a wrong configuration."""
    parent = os.getppid()
    guard = Guard(parent)
    guard.catch_signals()
    try:
        check_platform()
        place = Place.read(os.environ)
        die_with_parent(signal.SIGTERM, parent)
        loaded = load_config(arguments)
        check_world(loaded.config, place.world_size, place.nodes)
        check_one_node(place.nodes)
        if place.rank == 0:
            preflight(loaded.config)
        folder = RunFolder.open(loaded.config, place, RealHost().wall_time()) if place.rank == 0 else None
    except (ConfigError, DataError) as error:
        if os.environ.get("RANK", "0") != "0":
            # All ranks find the same. Rank 0 says it, and then torchrun ends this one; the first to exit would silence the others.
            time.sleep(RANK_0_SECONDS)
        return refuse(error)
    guard.folder = folder
    return _run(loaded, place, guard, controller)


def _run(loaded: Loaded, place: Place, guard: Guard, controller: "Controller | None") -> int:
    host, folder = RealHost(), guard.folder
    sockets, token, supervisor = "", b"", None
    if folder is not None:
        guard.sockets = sockets = private_folder()
        token = make_token(host)
        supervisor = SupervisorClient.start(
            host=host,
            folder=sockets,
            log_folder=str(folder.logs),
            attempt=str(place.attempt),
            env_allow=CHILD_ENVIRONMENT,
            token=token,
        )
    from asyncrl.launch.controller import train
    from asyncrl.launch.rank import RankJob, run_rank  # imports torch

    job = RankJob(loaded, place, host, guard, sockets, token, supervisor)
    return run_main(lambda: run_rank(job, train if controller is None else controller))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
