"""A rollout engine that takes the time of generation and computes nothing."""

import math
import time
from collections.abc import Sequence
from random import Random

from asyncrl.rollout.scripted import ScriptedEngine
from asyncrl.trajectory import GenerateOutput, GenerateRequest

TOKEN = 0.005
"""Seconds of a token."""
TOKENS = range(2, 10)
"""What answers are made of: they only take time."""


def latency(seed: int, uid: str, session: str, mean: float, sigma: float) -> float:
    """Seconds that an answer takes when nothing waits: log-normal with this mean, in whole tokens."""
    drawn = Random(f"{seed} {uid} {session}").lognormvariate(math.log(mean) - sigma * sigma / 2, sigma)
    return TOKEN * max(1, round(drawn / TOKEN))


class SleepingEngine(ScriptedEngine):
    """Draws the length of each answer beforehand, and sleeps for the time of each token.

    A step ends when its token is due, whatever the time between two steps was spent on.
    """

    def __init__(self, seed: int, slots: int, mean: float, sigma: float) -> None:
        self._seed, self._mean, self._sigma = seed, mean, sigma
        self._due = 0.0
        super().__init__(self._answer, max_num_seqs=slots, max_model_len=1 << 20)

    def _answer(self, request: GenerateRequest) -> Sequence[int]:
        tokens = round(latency(self._seed, request.uid, request.session, self._mean, self._sigma) / TOKEN)
        return [TOKENS[place % len(TOKENS)] for place in range(request.drawn, tokens)]

    def step(self) -> list[GenerateOutput]:
        now = time.monotonic()
        # After a pause the time begins anew; what a step was late by is made up.
        self._due = (self._due if now - self._due < TOKEN else now) + TOKEN
        time.sleep(max(0.0, self._due - now))
        return super().step()
