"""Entry of ``python -m asyncrl.launch``; torch is imported only when the configuration has been found good."""

import os
import signal
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from asyncrl.config.checks import check_world
from asyncrl.config.load import Loaded, load_config
from asyncrl.errors import ConfigError, DataError
from asyncrl.launch.environment import Place, check_nodes, check_platform
from asyncrl.launch.guard import EXIT_CONFIG, Guard
from asyncrl.launch.preflight import preflight
from asyncrl.launch.refusal import refuse
from asyncrl.launch.run_folder import RunFolder
from asyncrl.runtime.host import RealHost, die_with_parent, run_main
from asyncrl.runtime.security import make_token, private_folder
from asyncrl.runtime.supervisor import SupervisorClient

CHILD_ENVIRONMENT = ("VIRTUAL_ENV", "PYTHONPATH", "PYTHONHASHSEED", "OMP_NUM_THREADS", "HF_HUB_OFFLINE", "TZ")
"""What agents, rewards and shards may see of this environment: no token, no credential."""

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
        check_nodes(place)
        if place.rank == 0:
            preflight(loaded.config)
        folder = RunFolder.create(loaded.config, RealHost().wall_time()) if place.rank == 0 else None
    except (ConfigError, DataError) as error:
        # All ranks find the same; one says it.
        return refuse(error) if os.environ.get("RANK", "0") == "0" else EXIT_CONFIG
    guard.folder = folder
    return _run(loaded, place, guard, controller)


def _run(loaded: Loaded, place: Place, guard: Guard, controller: "Controller | None") -> int:
    host, folder = RealHost(), guard.folder
    sockets, token, supervisor = "", b"", None
    if folder is not None:
        sockets, token = private_folder(), make_token(host)
        supervisor = SupervisorClient.start(
            host=host,
            folder=sockets,
            log_folder=str(folder.logs),
            attempt=str(place.attempt),
            env_allow=CHILD_ENVIRONMENT,
            token=token,
        )
    from asyncrl.launch.rank import RankJob, run_rank  # imports torch
    from asyncrl.launch.session import train

    job = RankJob(loaded, place, host, guard, sockets, token, supervisor)
    return run_main(lambda: run_rank(job, train if controller is None else controller))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
