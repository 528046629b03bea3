"""How long engines generated and the policy was updated at the same time, read from the event files of a run."""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from asyncrl.observe.events import Event, read_run
from asyncrl.runtime.records import Called, Spanned
from asyncrl.workers.usage import GENERATE

UPDATE = "policy.update"
Interval = tuple[float, float]


@dataclass(frozen=True, slots=True)
class Overlap:
    """Seconds between the begin of the first update and the end of the last one, and what went on in them."""

    whole: float
    updating: float
    generating: float
    both: float


def merged(intervals: Iterable[Interval]) -> list[Interval]:
    """Their union, in order, as intervals that do not touch.

    >>> merged([(3, 4), (0, 1), (0.5, 2)])
    [(0, 2), (3, 4)]
    """
    found: list[Interval] = []
    for begin, end in sorted(intervals):
        if found and begin <= found[-1][1]:
            found[-1] = (found[-1][0], max(end, found[-1][1]))
        else:
            found.append((begin, end))
    return found


def common(left: Iterable[Interval], right: Iterable[Interval]) -> list[Interval]:
    """What is in both unions.

    >>> common([(0, 2), (3, 6)], [(1, 4), (5, 7)])
    [(1, 2), (3, 4), (5, 6)]
    """
    pairs = [(max(a, c), min(b, d)) for a, b in merged(left) for c, d in merged(right)]
    return [(begin, end) for begin, end in pairs if begin < end]


def seconds(intervals: Iterable[Interval]) -> float:
    """Their length, of what overlaps once.

    >>> seconds([(0, 2), (1, 3)])
    3
    """
    return sum(end - begin for begin, end in merged(intervals))


def overlap_of(events: Iterable[Event]) -> Overlap:
    """Of the updates that every rank has served, and the generation of any engine."""
    updates: list[Interval] = []
    generation: list[Interval] = []
    for event in events:
        record = event.record
        if isinstance(record, Called) and record.endpoint == UPDATE:
            updates.append((event.time - record.seconds, event.time))
        elif isinstance(record, Spanned) and record.name == GENERATE:
            generation.append((event.time - record.seconds, event.time))
    whole = [(min(begin for begin, _ in updates), max(end for _, end in updates))]
    inside = common(whole, generation)
    return Overlap(seconds(whole), seconds(updates), seconds(inside), seconds(common(updates, inside)))


def overlap_of_run(folder: Path) -> Overlap:
    """As ``overlap_of``, of a run folder."""
    return overlap_of(read_run(folder / "events"))
