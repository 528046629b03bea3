"""A mode is a value: how far generation may run ahead of training, and what happens to the engines meanwhile."""

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class Schedule:
    """One scheduling policy over the one loop.

    ``lookahead``: batches of prompts that may be in generation beyond the one being trained.
    ``training_window``: what the co-located engines do while the policy trains.
    """

    lookahead: float
    training_window: Literal["sleep"]

    def room(self, batch: int, in_flight: int, remaining: int) -> int:
        """How many prompts may be issued now: at most ``(1 + lookahead) * batch`` are neither trained nor dropped.

        ``remaining`` is how many the remaining steps can train; what is issued beyond would be thrown away.

        >>> Schedule(lookahead=0.5, training_window="sleep").room(batch=32, in_flight=16, remaining=100)
        32
        """
        return max(0, min(batch, int((1 + self.lookahead) * batch) - in_flight, remaining - in_flight))


SCHEDULES: dict[str, Schedule] = {"sync": Schedule(lookahead=0, training_window="sleep")}
