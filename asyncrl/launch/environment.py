"""What torchrun tells a process about its place in the job."""

import platform
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from asyncrl.errors import ConfigError

_NAMES = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


@dataclass(frozen=True, slots=True)
class Place:
    """This process among the ranks. ``attempt`` counts torchrun's restarts, ``run_id`` names the job.

    Nodes are numbered by arrival, and so are their ranks.
    """

    rank: int
    local_rank: int
    world_size: int
    local_world_size: int
    attempt: int
    run_id: str
    node: int = 0

    @classmethod
    def read(cls, environment: Mapping[str, str]) -> "Place":
        """Read torchrun's variables. Raises ConfigError when the process was not started by torchrun."""
        missing = [name for name in _NAMES if name not in environment]
        if missing:
            raise ConfigError(
                "",
                f"no {', '.join(missing)} in the environment",
                "start it with `asyncrl train config=NAME` or `torchrun --standalone --nproc-per-node N -m asyncrl.launch config=NAME`",
            )
        place = cls(
            rank=int(environment["RANK"]),
            local_rank=int(environment["LOCAL_RANK"]),
            world_size=int(environment["WORLD_SIZE"]),
            local_world_size=int(environment["LOCAL_WORLD_SIZE"]),
            attempt=int(environment.get("TORCHELASTIC_RESTART_COUNT", "0")),
            run_id=environment.get("TORCHELASTIC_RUN_ID", "none"),
            node=int(environment.get("GROUP_RANK", "0")),
        )
        if place.world_size != place.local_world_size * int(environment.get("GROUP_WORLD_SIZE", "1")):
            here = f"{place.local_world_size} here, {place.world_size} in all"
            raise ConfigError("--nproc-per-node", here, "allowed: the same number on each node")
        return place

    @property
    def nodes(self) -> int:
        """The number of nodes, all with as many ranks as this one."""
        return self.world_size // self.local_world_size

    @property
    def several_nodes(self) -> bool:
        """Whether processes meet over tcp."""
        return self.nodes > 1

    def node_of(self, rank: int) -> int:
        """The node of a rank."""
        return rank // self.local_world_size

    def on_node(self, node: int) -> str:
        """Words behind a name: where it is; none where there is only one node."""
        return f" on node {node}" if self.several_nodes else ""

    @property
    def here(self) -> str:
        """As ``on_node``, for this node."""
        return self.on_node(self.node)

    def name_of(self, rank: int) -> str:
        """The rank in words."""
        return f"rank {rank}{self.on_node(self.node_of(rank))}"


def check_platform() -> None:
    """Raise ConfigError anywhere but on Linux: parent-death signals and pidfds are needed."""
    if platform.system() != "Linux":
        raise ConfigError("", platform.system(), "asyncrl runs on Linux only")


def machine_id() -> str:
    """A name of the running machine that no other has; "" where the kernel gives none."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""
