"""A mode is a value: how far generation may run ahead of training, and what happens to the engines meanwhile."""

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class Schedule:
    """One scheduling policy over the one loop.

    ``lookahead``: batches of prompts that may be in generation beyond the one being trained.
    ``parameter_sync_step``: local updates that share one weight sync.
    ``training_window``: what the co-located engines do while the policy trains.
    """

    lookahead: float
    parameter_sync_step: int
    training_window: Literal["sleep"]


SCHEDULES: dict[str, Schedule] = {"sync": Schedule(lookahead=0, parameter_sync_step=1, training_window="sleep")}
