"""What an engine spends its time on: generating, paused, or without a request."""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Literal

import msgspec

from asyncrl.runtime.events import EventWriter
from asyncrl.trajectory import GenerateOutput

State = Literal["generating", "paused", "idle"]
GENERATE = "generate"
"""The span in the event file: from the first request of an idle engine until it has none, or is paused."""


class EngineUsage(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Seconds of each kind, and what a pause cost."""

    generating: float = 0.0
    """With requests, other jobs of a shared device included."""
    paused: float = 0.0
    """Closed for new weights."""
    idle: float = 0.0
    """Without a request, or without weights."""
    given_back: int = 0
    """Tokens of answers that a pause cut; they go on from these."""

    @property
    def waited(self) -> float:
        """Seconds in which the engine could generate nothing."""
        return self.paused + self.idle


class UsageMeter:
    """Adds up the seconds of one engine; ``events`` takes the spans of generation."""

    def __init__(self, clock: Callable[[], float], events: EventWriter | None) -> None:
        self._clock, self._events = clock, events
        self._state: State = "idle"
        self._since = clock()
        self._seconds = _nothing()
        self._given_back = 0

    def take(self) -> EngineUsage:
        """The seconds since the last call."""
        self._enter(self._state)
        usage = EngineUsage(**self._seconds, given_back=self._given_back)
        self._seconds, self._given_back = _nothing(), 0
        return usage

    @contextlib.contextmanager
    def generating(self) -> Iterator[None]:
        """A block in which the engine has requests."""
        with contextlib.nullcontext() if self._events is None else self._events.span(GENERATE):
            self._enter("generating")
            try:
                yield
            finally:
                self._enter("idle")

    def give_back(self, outputs: Sequence[GenerateOutput]) -> None:
        """These answers were cut for a pause."""
        self._given_back += sum(len(output.token_ids) for output in outputs)

    def waits(self, *, paused: bool) -> None:
        """From now on the engine waits, ``paused`` or for requests."""
        self._enter("paused" if paused else "idle")

    def _enter(self, state: State) -> None:
        now = self._clock()
        self._seconds[self._state] += now - self._since
        self._state, self._since = state, now


def _nothing() -> dict[State, float]:
    return {"generating": 0.0, "paused": 0.0, "idle": 0.0}
