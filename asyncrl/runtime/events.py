"""The event file of a process: append-only MessagePack records, written by a thread of its own.

A disk that hangs stops nobody, and a process in which nothing happens is not woken. A kill loses what was not yet written,
a second's worth at most, and leaves at worst a torn last record.
"""

import contextlib
import logging
from collections import deque
from collections.abc import Callable
from types import TracebackType
from typing import BinaryIO, Self

import msgspec

from asyncrl.runtime.actor import CURRENT_CALL
from asyncrl.runtime.forks import beware_of_forks
from asyncrl.runtime.host import ThreadedHost, move_file, own_pid, size_of
from asyncrl.runtime.messages import VERSION
from asyncrl.runtime.records import Called, Noted, Plain, Record, Spanned, Started, Stats, Summary
from asyncrl.runtime.watching import EVENTS_LIMIT, Watching

logger = logging.getLogger(__name__)

BATCH_SECONDS = 1.0
"""How long records are gathered before they are written."""
SUMMARY_SECONDS = 10.0
MOST_WAITING = 65536
"""Records that wait for the disk; more are dropped and counted."""
PATIENCE = 1.0
"""Seconds for which ``flush`` and ``close`` wait for the disk."""


def event_file(folder: str, process: str, generation: int) -> str:
    """The event file of one life of a process."""
    return f"{folder}/{process}-{generation}.msgpack"


def put_aside(path: str) -> str:
    """Where the previous file goes when ``path`` is begun anew."""
    return f"{path.removesuffix('.msgpack')}.old.msgpack"


class EventWriter:
    """Writes the records of one process to ``path``. All methods may be called on any thread.

    A file that is there already is put aside, and so is one that has reached ``limit`` bytes: the newest two are kept.
    ``summary`` is asked for the counters every ten seconds in which a call was served, and at the end; on the writer's thread.
    """

    def __init__(
        self, path: str, host: ThreadedHost, *, process: str = "", generation: int = 0, attempt: str = "", limit: int = EVENTS_LIMIT
    ) -> None:
        self.path, self.process, self.generation, self.attempt = path, process, generation, attempt
        self.summary: Callable[[], Stats] | None = None
        self.dropped = 0
        """Records lost because the disk did not take them."""
        self._host, self._clock, self._limit = host, host.clock, limit
        self._encode = msgspec.msgpack.Encoder().encode
        self._waiting: deque[bytes] = deque()
        self._awake = False
        self._closed = self._failed = False
        self._calls = self._summed = 0
        self._summary_due: float | None = None
        self._some, self._cut, self._written = host.flag(), host.flag(), host.flag()
        self._asked = self._done = 0
        self._file: BinaryIO | None = None
        self._size = 0
        self._open()
        self._thread = host.start_thread(self._run, f"events of {process or path}")
        beware_of_forks(self)

    def write(self, record: Record, hurry: bool = False) -> None:
        """Appends a record; ``hurry`` for one that should survive a kill that follows at once. Raises TypeError for no plain data."""
        self._append(self._encode(record))
        if hurry:
            self._cut.set()

    def call(self, at: float, endpoint: str, caller: str, seconds: float, trace: str, failure: str) -> None:
        """A call was served."""
        self._calls += 1
        self._append(self._encode(Called(at, endpoint, caller, seconds, trace, failure)))

    def span(self, name: str, **attributes: Plain) -> "Span":
        """A block whose length is recorded under ``name``, with the trace of the call that it serves."""
        return Span(self, name, attributes)

    def note(self, name: str, subjects: list[str], **attributes: Plain) -> None:
        """Something happened to ``subjects``, with the trace of the call that is being served."""
        current = CURRENT_CALL.get()
        self.write(Noted(self._clock(), name, subjects, "" if current is None else current.trace, attributes))

    def now(self) -> float:
        """The time for the ``at`` of a record."""
        return self._clock()

    def _append(self, data: bytes) -> None:
        if self._closed or len(self._waiting) >= MOST_WAITING:
            self.dropped += 1
            return
        self._waiting.append(data)
        if not self._awake:
            self._awake = True
            self._some.set()

    def flush(self) -> None:
        """Returns when everything so far is written, or after a second: the disk may hang."""
        self._asked += 1
        mine, end = self._asked, self._clock() + PATIENCE
        self._cut.set()
        self._some.set()
        while self._done < mine and (left := end - self._clock()) > 0:
            self._written.wait(left)
            self._written.clear()

    def close(self) -> None:
        """Writes the last summary and everything that waits; harmless twice."""
        if self._closed:
            return
        self._sum_up()
        self._closed = True
        self.flush()
        self._thread.join(PATIENCE)

    def forked(self) -> None:
        """This process is a copy without a writer: it writes nothing into the file of the other."""
        self._closed = True
        self._waiting.clear()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def _run(self) -> None:
        while not (self._closed and not self._waiting):
            due = None if self._summary_due is None else max(0.0, self._summary_due - self._clock())
            self._some.wait(due)
            self._some.clear()
            if not self._closed:
                self._cut.wait(BATCH_SECONDS)
            self._cut.clear()
            self._awake = False
            asked = self._asked
            if self._summary_due is not None and self._clock() >= self._summary_due:
                self._sum_up()
            elif self._summary_due is None and self._calls != self._summed:
                self._summary_due = self._clock() + SUMMARY_SECONDS
            self._drain()
            self._done = asked
            self._written.set()
        if self._file is not None:
            self._give_up(self._file)

    def _sum_up(self) -> None:
        self._summed, self._summary_due = self._calls, None
        if self.summary is not None:
            self._append(self._encode(Summary(self._clock(), self.summary())))

    def _drain(self) -> None:
        records: list[bytes] = []
        while self._waiting:
            records.append(self._waiting.popleft())
        if not records:
            return
        data = b"".join(records)
        try:
            if self._file is not None and self._size + len(data) > self._limit:
                self._open()
            self._put(data)
        except OSError as error:
            self.dropped += len(records)
            if not self._failed:
                self._failed = True
                logger.warning("%s takes no events any more: %s", self.path, error)
            if self._file is not None:
                self._give_up(self._file)

    def _give_up(self, file: BinaryIO) -> None:
        self._file = None
        # Closing writes what is buffered, and fails as that did.
        with contextlib.suppress(OSError):
            file.close()

    def _open(self) -> None:
        """Begins a new file. Raises OSError when that cannot be."""
        if self._file is not None:
            self._give_up(self._file)
        if size_of(self.path):
            move_file(self.path, put_aside(self.path))
        self._file = self._host.open_append(self.path)
        self._size = 0
        start = Started(self._clock(), self._host.wall_time(), self.process, self.generation, own_pid(), self.attempt, VERSION)
        self._put(self._encode(start))

    def _put(self, data: bytes) -> None:
        if self._file is None:
            raise OSError("the file was given up")
        self._file.write(data)
        self._file.flush()
        self._size += len(data)


def open_events(host: ThreadedHost, watching: Watching, process: str, generation: int, attempt: str) -> EventWriter | None:
    """The event file of this life of a process where its settings ask for one. A folder that takes none is said, and ends nothing."""
    if not watching.events:
        return None
    path = event_file(watching.events, process, generation)
    try:
        return EventWriter(path, host, process=process, generation=generation, attempt=attempt, limit=watching.events_limit)
    except OSError as error:
        logger.warning("%s cannot be written, %s goes without: %s", path, process, error)
        return None


class Span:
    """See ``EventWriter.span``."""

    __slots__ = ("_attributes", "_events", "_name", "_since")

    def __init__(self, events: EventWriter, name: str, attributes: dict[str, Plain]) -> None:
        self._events, self._name, self._attributes = events, name, attributes
        self._since = 0.0

    def __enter__(self) -> dict[str, Plain]:
        """Gives the attributes, to which the block may add."""
        self._since = self._events.now()
        return self._attributes

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        now, current = self._events.now(), CURRENT_CALL.get()
        failed: dict[str, Plain] = {} if kind is None else {"failure": kind.__name__}
        self._events.write(
            Spanned(now, self._name, now - self._since, "" if current is None else current.trace, {**self._attributes, **failed})
        )
