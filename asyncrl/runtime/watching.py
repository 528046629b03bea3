"""How a process is looked after from outside its event loop."""

import msgspec

EVENTS_LIMIT = 256 << 20


class Watching(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Settings of the watcher thread, of the forced exit and of the event file. Seconds, bytes, folders."""

    budget: float | None = 120.0
    """An event loop that stands still for so long ends its process; None lets it stand."""
    end_when_stuck: bool = False
    """Whether a wait that overruns its own budget, although nothing serves its timer, ends the process too."""
    exit_within: float = 10.0
    """A process of ours that has been told to leave and has not left by then is ended."""
    stacks: str = ""
    """Folder for the stacks of processes that are stuck; "" for the log alone."""
    events: str = ""
    """Folder for the event files; "" for none."""
    events_limit: int = EVENTS_LIMIT
    """Size at which an event file is put aside for a new one; the newest two are kept."""

    def __post_init__(self) -> None:
        if self.budget is not None and self.budget <= 0:
            raise ValueError(f"budget must be above 0 or None, got {self.budget:g}")
        if self.exit_within <= 0:
            raise ValueError(f"exit_within must be above 0, got {self.exit_within:g}")
        if self.events_limit < 1:
            raise ValueError(f"events_limit must be at least 1, got {self.events_limit}")


REPORTING = Watching(budget=None)
"""Reports and ends nothing: for a process that belongs to somebody else."""
