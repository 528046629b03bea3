"""When a silent peer counts as dead, and a silent event loop as stalled."""

import msgspec


class Liveness(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Seconds: a connection is tried every ``heartbeat``, and lost ``dead_after`` without an answer at the latest.

    Heartbeats are answered by a thread beside the event loop: they tell a process that is frozen, or cut off, from one that
    is busy. A loop that has not turned for ``stalled_after`` is stalled: that is reported, and does not make it dead.
    """

    heartbeat: float = 2.0
    dead_after: float = 10.0
    stalled_after: float = 1.0

    def __post_init__(self) -> None:
        if not 0 < self.heartbeat < self.dead_after:
            raise ValueError(f"heartbeat {self.heartbeat:g} s must be above 0 and below dead_after, {self.dead_after:g} s")
        if self.stalled_after <= 0:
            raise ValueError(f"stalled_after must be above 0, got {self.stalled_after:g}")
