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
from asyncrl.launch.children import start_supervisor
from asyncrl.launch.environment import Place, check_platform
from asyncrl.launch.guard import EXIT_CONFIG, Guard
from asyncrl.launch.interface import Interface, find_interface
from asyncrl.launch.job_key import job_keys, read_job_key
from asyncrl.launch.lasting import lasting
from asyncrl.launch.preflight import preflight
from asyncrl.launch.refusal import refuse
from asyncrl.launch.run_folder import RunFolder
from asyncrl.runtime.curve import Keyring
from asyncrl.runtime.host import RealHost, die_with_parent, run_main
from asyncrl.runtime.security import make_token, private_folder

RANK_0_SECONDS = 20.0
"""How long a rank that was given a wrong configuration leaves the word to rank 0."""

if TYPE_CHECKING:
    from asyncrl.launch.session import Controller


def main(arguments: Sequence[str], controller: "Controller | None" = None) -> int:
    """Run this rank to the end of the run; return its exit code: 0, 1 for a failed run, 2 for a wrong configuration."""
    parent = os.getppid()
    guard = Guard(parent)
    guard.catch_signals()
    place = None
    try:
        check_platform()
        place = Place.read(os.environ)
        die_with_parent(signal.SIGTERM, parent)
        loaded = load_config(arguments)
        check_world(loaded.config, place.world_size, place.nodes)
        if loaded.config.debug is not None:
            raise ConfigError("debug", loaded.config.debug, "torchrun starts processes of its own; use `asyncrl train`, or leave it out")
        keys = job_keys(read_job_key(os.environ), place.rank) if place.several_nodes else None
        interface = find_interface(loaded.config.runtime) if place.several_nodes else None
        if place.rank == 0:
            preflight(loaded.config)
        folder = RunFolder.open(loaded.config, place, RealHost().wall_time()) if place.rank == 0 else None
    except (ConfigError, DataError) as error:
        return _refused(error, place)
    guard.folder = folder
    if interface is not None:
        guard.place, guard.speaks = place.here, place.local_rank == 0
        # gloo and NCCL would listen on what the host name resolves to.
        os.environ.setdefault("GLOO_SOCKET_IFNAME", interface.name)
        os.environ.setdefault("NCCL_SOCKET_IFNAME", interface.name)
    return _run(loaded, place, keys, interface, guard, controller)


def _refused(error: ConfigError | DataError, place: Place | None) -> int:
    """Say what is wrong, once on each node, which has a terminal of its own."""
    several = place is not None and place.several_nodes
    if os.environ.get("LOCAL_RANK" if several else "RANK", "0") != "0":
        # All ranks find the same. The first says it, and then torchrun ends this one; the first to exit would silence the others.
        time.sleep(RANK_0_SECONDS)
    code = refuse(error)
    if place is not None and several:
        from asyncrl.launch.meeting import post_refusal  # imports torch

        post_refusal(place, str(error))
        os._exit(EXIT_CONFIG)
    return code


def _run(
    loaded: Loaded, place: Place, keys: Keyring | None, interface: Interface | None, guard: Guard, controller: "Controller | None"
) -> int:
    host, folder = RealHost(), guard.folder
    sockets, token, supervisor = "", b"" if keys is None else keys.token, None
    if folder is not None:
        guard.sockets = sockets = private_folder()
        token = token or make_token(host)
        supervisor = start_supervisor(host, place, folder, sockets, token, interface)
    with lasting():
        from asyncrl.launch.controller import train
        from asyncrl.launch.rank import RankJob, run_rank  # imports torch

    job = RankJob(loaded, place, host, guard, sockets, token, keys, interface, supervisor)
    return run_main(lambda: run_rank(job, train if controller is None else controller))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
