"""Who was issued, trained or dropped: a pure table in the controller.

The ledger alone decides these three; ``trained + dropped + in flight = issued`` is asserted at every change.
"""

from collections import Counter
from collections.abc import Iterable

import msgspec

from asyncrl.errors import AsyncRLError


class LedgerError(AsyncRLError):
    """A prompt that was issued twice, or settled without being in flight."""


class LedgerState(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The ledger of a checkpoint: every uid in the order of issue, and what became of those that settled."""

    order: list[str]
    in_flight: dict[str, int]
    trained: dict[str, int]
    dropped: dict[str, str]


class Ledger:
    """Every uid of the run, in the order of issue."""

    def __init__(self) -> None:
        self._order: dict[str, int] = {}
        self._in_flight: dict[str, int] = {}
        self._trained: dict[str, int] = {}
        self._dropped: dict[str, str] = {}

    def issue(self, uid: str, step: int) -> int:
        """Record that ``uid`` was issued at ``step``; return its place in the order of issue."""
        if uid in self._order:
            raise LedgerError(f"{uid} was issued before")
        self._order[uid] = len(self._order)
        self._in_flight[uid] = step
        self._check()
        return self._order[uid]

    def train(self, uids: Iterable[str], step: int) -> None:
        """Record that the groups of ``uids`` were trained at ``step``."""
        for uid in uids:
            self._settle(uid)
            self._trained[uid] = step
        self._check()

    def drop(self, uid: str, reason: str) -> None:
        """Record that ``uid`` will not be trained, and why."""
        self._settle(uid)
        self._dropped[uid] = reason
        self._check()

    def place(self, uid: str) -> int:
        """The place of ``uid`` in the order of issue."""
        return self._order[uid]

    def counts(self) -> dict[str, int]:
        """How many prompts are issued, trained, dropped and in flight."""
        return {
            "issued": len(self._order),
            "trained": len(self._trained),
            "dropped": len(self._dropped),
            "in_flight": len(self._in_flight),
        }

    def drop_reasons(self) -> dict[str, int]:
        """How many prompts were dropped for each reason."""
        return dict(sorted(Counter(self._dropped.values()).items()))

    def state(self) -> LedgerState:
        """The table as it is now."""
        return LedgerState(list(self._order), dict(self._in_flight), dict(self._trained), dict(self._dropped))

    def restore(self, state: LedgerState) -> None:
        """Become the table of ``state``. Raises LedgerError when its parts do not add up."""
        settled = [*state.in_flight, *state.trained, *state.dropped]
        if sorted(settled) != sorted(state.order):
            raise LedgerError(f"{len(state.order)} prompts were issued, {len(settled)} are accounted for")
        self._order = {uid: place for place, uid in enumerate(state.order)}
        self._in_flight, self._trained, self._dropped = dict(state.in_flight), dict(state.trained), dict(state.dropped)
        self._check()

    def _settle(self, uid: str) -> None:
        if self._in_flight.pop(uid, None) is None:
            state = "trained" if uid in self._trained else "dropped" if uid in self._dropped else "never issued"
            raise LedgerError(f"{uid} is not in flight: {state}")

    def _check(self) -> None:
        assert len(self._trained) + len(self._dropped) + len(self._in_flight) == len(self._order)
