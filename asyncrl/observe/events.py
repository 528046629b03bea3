"""Reads event files, also those of a process that was killed, and while they are being written."""

from collections.abc import Iterable, Iterator
from heapq import merge
from pathlib import Path
from typing import NamedTuple

import msgpack  # type: ignore[import-untyped]

from asyncrl.runtime.events import put_aside
from asyncrl.runtime.records import Record, Started, record_of


class Event(NamedTuple):
    """One record with its Unix time and the process that wrote it."""

    time: float
    process: str
    generation: int
    record: Record


def read_events(path: Path | str) -> Iterator[Event]:
    """The records of one file, in the order in which they were written.

    Ends before the first byte that is no whole record: a kill tears the last one. Kinds that this version does not know are
    left out. Raises OSError for a file that cannot be opened.
    """
    start: Started | None = None
    with open(path, "rb") as file:
        unpacker = msgpack.Unpacker(file, raw=False)
        try:
            for value in unpacker:
                record = record_of(value)
                if isinstance(record, Started):
                    start = record
                if record is not None and start is not None:
                    yield Event(start.wall + record.at - start.at, start.process, start.generation, record)
        except (ValueError, msgpack.UnpackException):
            # A torn end of an old write, or blocks that the disk never got.
            return


def event_files(folder: Path | str) -> list[Path]:
    """The event files of a folder by name, what was put aside before what followed it."""
    newest = sorted(path for path in Path(folder).glob("*.msgpack") if not path.name.endswith(".old.msgpack"))
    pairs = [(Path(put_aside(str(path))), path) for path in newest]
    return [path for pair in pairs for path in pair if path.exists()]


def read_run(folder: Path | str) -> Iterator[Event]:
    """The records of all processes of a run, in order of time; ``folder`` is the run's ``events``."""
    files: Iterable[Iterator[Event]] = [read_events(path) for path in event_files(folder)]
    return merge(*files, key=lambda event: event.time)
