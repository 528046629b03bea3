"""What a resumed run takes over from the queue of the attempt before: a pure decision over the ledger and what was found."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from asyncrl.errors import DataError
from asyncrl.trainer.ledger import LedgerState
from asyncrl.trajectory import Status, TrajectoryKey

Tag = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Adoption:
    """What becomes of the prompts of the attempt before."""

    finished: dict[str, Tag] = field(default_factory=dict)
    """In flight at the checkpoint and settled since, or then: their markers. They are trained as they are."""
    again: list[str] = field(default_factory=list)
    """In flight at the checkpoint, and not settled: issued again, in the order of issue."""
    later: dict[str, Tag] = field(default_factory=dict)
    """Issued after the checkpoint, and settled: taken over when the data reaches them again."""
    clear: list[str] = field(default_factory=list)
    """Rows that nobody will ask for: of prompts that were trained or dropped, and of what is generated again."""


def adoption(ledger: LedgerState, rows: Mapping[str, Tag], step: int, *, newer: bool) -> Adoption:
    """Sort the rows of a partition, markers among them, for a run that goes on after ``step``.

    ``newer``: whether groups with tokens of versions beyond ``step`` are kept; their log-probs are still those of the policy
    that sampled them.
    """
    markers = {key: tag for key, tag in rows.items() if tag.get("is_prompt")}
    by_uid: dict[str, list[str]] = {}
    too_new: dict[str, None] = {}
    for key, tag in rows.items():
        uid = key if key in markers else _uid_of(key)
        by_uid.setdefault(uid, []).append(key)
        if int(tag.get("max_global_steps", -1)) > step:
            too_new[uid] = None
    settled = {uid for uid, tag in markers.items() if Status(tag["status"]).settled and (newer or uid not in too_new)}
    known = ledger.trained.keys() | ledger.dropped.keys()
    finished = {uid: markers[uid] for uid in ledger.in_flight if uid in settled}
    again = [uid for uid in ledger.in_flight if uid not in settled]
    later = {uid: tag for uid, tag in markers.items() if uid in settled and uid not in known and uid not in ledger.in_flight}
    clear = [key for uid, keys in by_uid.items() if uid not in finished and uid not in later for key in keys]
    return Adoption(finished, again, later, clear)


def _uid_of(key: str) -> str:
    try:
        return TrajectoryKey.parse(key).uid
    except DataError:
        return key
