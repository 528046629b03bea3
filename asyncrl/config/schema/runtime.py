"""``runtime.*``: how processes reach each other. These options are asyncrl's own."""

from typing import Literal

from asyncrl.config.schema.section import Section, refuse
from asyncrl.config.schema.types import Port, Positive


class Runtime(Section, frozen=True, kw_only=True):
    """Addresses and patience of the actor runtime."""

    interface: Literal["127.0.0.1"] = "127.0.0.1"
    """Address that tcp sockets bind to; only the loopback until connections are authenticated."""
    port_range: tuple[Port, Port] | None = None
    """First and last port that may be bound; null = any free one."""
    deadline: Positive = 30.0
    """Seconds a control call may take."""
    silence: Positive = 600.0
    """Seconds without a sign of progress after which a watched call (generation, training) fails."""

    def __post_init__(self) -> None:
        if self.port_range is not None and self.port_range[0] > self.port_range[1]:
            raise refuse("port_range", list(self.port_range), "allowed: [first, last] with first <= last")
