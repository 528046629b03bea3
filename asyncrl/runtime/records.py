"""What an event file holds: one MessagePack map after another, each with its ``kind`` and its time ``at`` on the writer's clock.

A field that has its default is left out. Readers skip kinds that they do not know.
"""

from typing import Any, TypeAlias

import msgspec

from asyncrl.runtime.histogram import Buckets, Histogram

Plain: TypeAlias = str | int | float | bool | None


class Record(msgspec.Struct, tag_field="kind", omit_defaults=True, frozen=True):
    """Root of the records. ``at`` is in seconds on the process's monotonic clock: when it happened, or ended."""

    at: float


class Started(Record, tag="start", frozen=True):
    """First record of every file: whose it is, and the Unix time ``wall`` at ``at``."""

    wall: float
    process: str
    generation: int
    pid: int
    attempt: str = ""
    version: str = ""


class Called(Record, tag="call", frozen=True):
    """A call that was served here: ``seconds`` from its arrival to its answer. ``endpoint`` is "actor.method".

    ``failure`` is the name of the error it was answered with, "" for none.
    """

    endpoint: str
    caller: str
    seconds: float
    trace: str = ""
    failure: str = ""


class Spanned(Record, tag="span", frozen=True):
    """A stretch of work that was given a name."""

    name: str
    seconds: float
    trace: str = ""
    attributes: dict[str, Plain] = {}


class Noted(Record, tag="note", frozen=True):
    """Something that happened to things with names, as rows of a queue: ``name`` says what, ``subjects`` to which."""

    name: str
    subjects: list[str]
    trace: str = ""
    attributes: dict[str, Plain] = {}


class Waited(Record, tag="wait", frozen=True):
    """A wait of a second or more that is over."""

    who: str
    what: str
    seconds: float


class Died(Record, tag="death", frozen=True):
    """A process was found to be gone."""

    process: str
    cause: str


class Restarted(Record, tag="restart", frozen=True):
    """A process serves again, as ``generation``."""

    process: str
    generation: int


class Refused(Record, tag="refusal", frozen=True):
    """A caller was refused; ``who`` is "" for a stranger. ``count`` is that of all refusals so far: not each is written."""

    who: str
    reason: str
    count: int


class Stalled(Record, tag="stall", frozen=True):
    """The event loop stood still in ``place``, and runs again."""

    seconds: float
    place: str


class Stuck(Record, tag="stuck", frozen=True):
    """Last words: the process is ended because it is stuck."""

    report: str


class EndpointStats(msgspec.Struct, omit_defaults=True, frozen=True):
    """One endpoint since the start of the process: calls that ended, how many of them failed, and how long they took."""

    endpoint: str
    calls: int
    failures: int = 0
    seconds: float = 0.0
    latency: Buckets = []

    def quantile(self, share: float) -> float:
        """The latency in seconds below which ``share`` (0 to 1) of the calls lie."""
        return Histogram(self.latency).quantile(share)


class Stats(msgspec.Struct, omit_defaults=True, frozen=True):
    """Counters of one process since its start, and its queues at this moment.

    ``served`` are its own endpoints ("actor.method"), from arrival to answer; ``called`` those of others ("Class.method"),
    there and back. ``queued`` is calls that wait in a mailbox, by actor; ``unanswered`` calls that a peer owes an answer,
    by process. ``loop_lag`` is how late the event loop answered the watcher, one sample a second.
    """

    served: list[EndpointStats] = []
    called: list[EndpointStats] = []
    queued: dict[str, int] = {}
    unanswered: dict[str, int] = {}
    waits: int = 0
    refusals: int = 0
    stalls: int = 0
    loop_lag: Buckets = []
    dropped_events: int = 0


class Summary(Record, tag="summary", frozen=True):
    """The counters: every ten seconds in which there was traffic, and at the end."""

    stats: Stats


KINDS: dict[str, type[Record]] = {
    "start": Started, "call": Called, "span": Spanned, "note": Noted, "wait": Waited, "death": Died, "restart": Restarted,
    "refusal": Refused, "stall": Stalled, "stuck": Stuck, "summary": Summary,
}  # fmt: skip


def record_of(value: Any) -> Record | None:
    """A decoded map as its record; None for a kind that this version does not know. Raises ValueError for what is no record."""
    if not isinstance(value, dict) or not isinstance(value.get("kind"), str):
        raise ValueError(f"no record: {value!r:.100}")
    kind = KINDS.get(value["kind"])
    return None if kind is None else msgspec.convert(value, kind)
