"""The life of one key of the TransferQueue, read from the event files of a run: who wrote what, who read it, when it went.

Reads are sampled by the shards, so a table of reads is not complete; puts, tags and clears are.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field

import msgspec
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from asyncrl.observe.events import Event
from asyncrl.runtime.records import Noted, Plain

WIDTH = 48
"""Characters of a timeline."""
VERBS = {"queue.put": "put", "queue.get": "get", "queue.tags": "tags", "queue.clear": "clear"}


class Step(msgspec.Struct, frozen=True):
    """One thing that happened to a key. ``seconds`` counts from the first; ``step`` and ``version`` are -1 where unknown."""

    seconds: float
    key: str
    verb: str
    by: str
    fields: list[str]
    tag: str
    step: int
    version: int
    partition: str
    shard: int
    trace: str


class FieldNow(msgspec.Struct, frozen=True):
    """A field that a row holds: who wrote it last, and who was seen to read it next, "" for nobody."""

    partition: str
    key: str
    name: str
    writer: str
    seconds: float
    step: int
    version: int
    reader: str


@dataclass
class Life:
    """All that is known of a key, in order of time."""

    key: str
    steps: list[Step] = field(default_factory=list)

    def fields_now(self) -> list[FieldNow]:
        """The fields that are there after the last step, by partition, key and name."""
        held: dict[tuple[str, str, str], FieldNow] = {}
        for step in self.steps:
            if step.verb == "clear":
                held = {place: found for place, found in held.items() if place[:2] != (step.partition, step.key)}
            for name in step.fields:
                place = (step.partition, step.key, name)
                if step.verb == "put":
                    held[place] = FieldNow(step.partition, step.key, name, step.by, step.seconds, step.step, step.version, "")
                elif step.verb == "get" and place in held and not held[place].reader:
                    held[place] = msgspec.structs.replace(held[place], reader=step.by)
        return [held[place] for place in sorted(held)]

    def where(self, partition: str, key: str) -> str:
        """A key as it is shown: with its partition where the life is one in several."""
        return f"{partition}/{key}" if any(step.partition != partition for step in self.steps) else key


def belongs(key: str, wanted: str) -> bool:
    """Whether what happened to ``key`` is part of the life of ``wanted``: a row's own, and that of the marker of its prompt.

    >>> belongs("u_0_0", "u_0_0"), belongs("u", "u_0_0"), belongs("u_1_0", "u_0_0"), belongs("u_1_0", "u")
    (True, True, False, True)
    """
    return key == wanted or key == wanted.partition("_")[0] or ("_" not in wanted and key.partition("_")[0] == wanted)


def life_of(events: Iterable[Event], wanted: str) -> Life:
    """What the events tell of one row, or of a prompt with all its rows."""
    life = Life(wanted)
    start: float | None = None
    for event in events:
        record = event.record
        if not isinstance(record, Noted) or record.name not in VERBS:
            continue
        for key in record.subjects:
            if belongs(key, wanted):
                start = event.time if start is None else start
                life.steps.append(_step(event.time - start, key, record))
    return life


def _step(seconds: float, key: str, record: Noted) -> Step:
    told = record.attributes
    fields = [name for name in _text(told.get("fields")).split(",") if name]
    return Step(
        seconds,
        key,
        VERBS[record.name],
        _text(told.get("by")),
        fields,
        _text(told.get("tag")),
        _number(told.get("step")),
        _number(told.get("version")),
        _text(told.get("partition")),
        _number(told.get("shard")),
        record.trace,
    )


def _text(value: Plain) -> str:
    return value if isinstance(value, str) else ""


def _number(value: Plain) -> int:
    return value if isinstance(value, int) else -1


def rendered(life: Life) -> RenderableType:
    """A table of what happened, a timeline by process, and the fields that are there now."""
    steps = Table(title=f"the life of {life.key}", title_justify="left")
    for name in ("time", "key", "what", "by", "fields or tag", "step", "version", "shard"):
        steps.add_column(name, justify="right" if name in ("time", "step", "version", "shard") else "left")
    for step in life.steps:
        what = ", ".join(step.fields) or step.tag
        key = life.where(step.partition, step.key)
        steps.add_row(f"{step.seconds:.3f} s", key, step.verb, step.by, what, _known(step.step), _known(step.version), str(step.shard))
    now = Table(title="fields now", title_justify="left")
    for name in ("key", "field", "written by", "at", "step", "version", "read next by"):
        now.add_column(name)
    for held in life.fields_now():
        at = f"{held.seconds:.3f} s"
        key = life.where(held.partition, held.key)
        now.add_row(key, held.name, held.writer, at, _known(held.step), _known(held.version), held.reader or "(nobody seen)")
    parts: list[RenderableType] = [steps, Text(timeline(life))]
    return Group(*parts, now if now.row_count else Text("no field is there now"))


def timeline(life: Life) -> str:
    """One line a process: p put, g get, t tags, c clear, where they happened between the first step and the last."""
    length = max(life.steps[-1].seconds, 1e-9) if life.steps else 1.0
    lines: dict[str, list[str]] = {}
    for step in life.steps:
        line = lines.setdefault(step.by, ["."] * WIDTH)
        line[min(WIDTH - 1, int(step.seconds / length * WIDTH))] = step.verb[0]
    widest = max(map(len, lines), default=0)
    return "\n".join(f"{by.ljust(widest)}  {''.join(line)}" for by, line in lines.items())


def _known(number: int) -> str:
    return "" if number < 0 else str(number)
