"""``runtime.*``: how processes reach each other. These options are asyncrl's own."""

import re

from asyncrl.config.schema.section import Section, refuse
from asyncrl.config.schema.types import Name, NonNegativeInt, Positive

ALL_INTERFACES = ("*", "0.0.0.0", "::", "[::]")
PORT_RANGE = re.compile(r"(\d{1,5})-(\d{1,5})")


class Runtime(Section, frozen=True, kw_only=True):
    """Addresses and patience of the actor runtime."""

    interface: Name = "127.0.0.1"
    """Interface of each node that sockets between nodes bind to: its name (eth0) or an address of it; one node uses no such socket."""
    port_range: Name | None = None
    """Ports of these sockets, FIRST-LAST; null = any free ones."""
    silence: Positive = 600.0
    """Seconds without a sign of progress after which a watched call (generation, training) fails."""
    shared_memory: NonNegativeInt = 1 << 30
    """Bytes of memory that each process may lend to others of its host, so that large buffers need no socket; 0 for none."""

    def __post_init__(self) -> None:
        if self.interface in ALL_INTERFACES:
            raise refuse("interface", self.interface, "allowed: one interface or address, as eth0 or 127.0.0.1, never all of them")
        if self.port_range is None:
            return
        found = PORT_RANGE.fullmatch(self.port_range)
        if found is None or not 0 < int(found[1]) <= int(found[2]) < 65536:
            raise refuse("port_range", self.port_range, "allowed: null, or FIRST-LAST from 1 to 65535, as 29600-29700")
