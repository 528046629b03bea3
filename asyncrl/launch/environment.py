"""What torchrun tells a process about its place in the job."""

import platform
from collections.abc import Mapping
from dataclasses import dataclass

from asyncrl.errors import ConfigError

_NAMES = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


@dataclass(frozen=True, slots=True)
class Place:
    """This process among the ranks. ``attempt`` counts torchrun's restarts, ``run_id`` names the job."""

    rank: int
    local_rank: int
    world_size: int
    local_world_size: int
    attempt: int
    run_id: str

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
        return cls(
            rank=int(environment["RANK"]),
            local_rank=int(environment["LOCAL_RANK"]),
            world_size=int(environment["WORLD_SIZE"]),
            local_world_size=int(environment["LOCAL_WORLD_SIZE"]),
            attempt=int(environment.get("TORCHELASTIC_RESTART_COUNT", "0")),
            run_id=environment.get("TORCHELASTIC_RUN_ID", "none"),
        )

    @property
    def nodes(self) -> int:
        """The number of nodes, all with as many ranks as this one."""
        return self.world_size // self.local_world_size


def check_platform() -> None:
    """Raise ConfigError anywhere but on Linux: parent-death signals and pidfds are needed."""
    if platform.system() != "Linux":
        raise ConfigError("", platform.system(), "asyncrl runs on Linux only")


def check_one_node(nodes: int) -> None:
    """Raise ConfigError for more than one node: connections between nodes are not authenticated yet."""
    if nodes > 1:
        raise ConfigError("trainer.nnodes", nodes, "this version runs on one node")
