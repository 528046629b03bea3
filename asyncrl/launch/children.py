"""The supervisor of this node, as the launcher starts it."""

from asyncrl.launch.environment import Place
from asyncrl.launch.interface import Interface
from asyncrl.launch.run_folder import RunFolder
from asyncrl.launch.watching import watching
from asyncrl.runtime.host import Host
from asyncrl.runtime.supervisor import SupervisorClient

CHILD_ENVIRONMENT = (
    *("VIRTUAL_ENV", "PYTHONPATH", "PYTHONHASHSEED", "OMP_NUM_THREADS", "HF_HUB_OFFLINE", "TZ"),
    *("CUDA_VISIBLE_DEVICES", "GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"),
)
"""What the children of a run may see of this environment: no token, no credential. The last three are for engines."""


def start_supervisor(
    host: Host, place: Place, folder: RunFolder, sockets: str, token: bytes, interface: Interface | None
) -> SupervisorClient:
    """Start it; its children listen in ``sockets``, on several nodes at tcp ports of ``interface``."""
    return SupervisorClient.start(
        host=host,
        folder=sockets,
        log_folder=str(folder.logs),
        attempt=str(place.attempt),
        env_allow=CHILD_ENVIRONMENT,
        token=token,
        interface="" if interface is None else interface.address,
        ports="" if interface is None else interface.ports,
        name=f"supervisor-{place.node}" if place.several_nodes else "supervisor",
        watching=watching(folder),
    )
