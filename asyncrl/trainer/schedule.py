"""A mode is a value: how far generation may run ahead of training, and what happens to the engines meanwhile."""

from dataclasses import dataclass
from typing import Literal

from asyncrl.config.plan import most_in_flight

TrainingWindow = Literal["sleep", "pause", "swap"]
"""What the engines do while the policy trains.

``sleep``: nothing is in generation; they free their caches. ``pause``: what runs is aborted with its tokens kept, they free their
caches, and it goes on with the new weights. ``swap``: they generate on, on devices of their own, and take new weights in flight.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """One scheduling policy over the one loop.

    ``lookahead``: batches of prompts that may be in flight beyond the one being trained, a fraction too. ``updates``: local
    updates of a step, which share one weight sync; they divide the prompts of the step. ``whole_groups``: whether a group with
    a failed session is replaced; if not, its survivors train.
    """

    lookahead: float = 0.0
    updates: int = 1
    training_window: TrainingWindow = "sleep"
    whole_groups: bool = False

    def most(self, batch: int) -> int:
        """How many prompts may be in flight, which is neither trained nor dropped: ``(1 + lookahead) * batch``, rounded down."""
        return most_in_flight(batch, self.lookahead)

    def room(self, batch: int, in_flight: int, remaining: int) -> int:
        """How many prompts may be issued now: never more than ``most`` are in flight.

        ``remaining`` is how many the remaining steps can train; what is issued beyond would be thrown away.

        >>> Schedule(lookahead=0.5).room(batch=32, in_flight=16, remaining=100)
        32
        """
        return max(0, min(self.most(batch), remaining) - in_flight)
