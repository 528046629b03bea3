"""``runtime.*``: how processes reach each other. These options are asyncrl's own."""

from typing import Literal

from asyncrl.config.schema.section import Section
from asyncrl.config.schema.types import Positive


class Runtime(Section, frozen=True, kw_only=True):
    """Addresses and patience of the actor runtime."""

    interface: Literal["127.0.0.1"] = "127.0.0.1"
    """Address that sockets between nodes bind to. Only the loopback until connections are authenticated; one node uses no such socket."""
    silence: Positive = 600.0
    """Seconds without a sign of progress after which a watched call (generation, training) fails."""
