"""A rollout engine whose answers are drawn from (seed, uid, session) beforehand, one token for every hundredth of a second."""

import math
import time
from collections.abc import Iterable
from random import Random

from torch import Tensor

from asyncrl.rollout.scripted import ScriptedEngine
from asyncrl.trajectory import GenerateOutput, GenerateRequest
from asyncrl.weight_sync.digest import digest
from asyncrl.workers.engine_process import EngineRecipe

LONGEST = 48
"""Tokens of an answer at most; longer ones are cut when they are drawn."""
MEAN, SIGMA = 12.0, 1.0
"""Of the log-normal lengths."""
TOKEN = 0.01
"""Seconds of a token."""


def drawn_answer(seed: int, uid: str, session: str) -> list[int]:
    """The tokens of this session, whoever samples them, and however often it is begun: digits of the quickstart's model."""
    draw = Random(f"{seed} {uid} {session}")
    length = round(draw.lognormvariate(math.log(MEAN) - SIGMA * SIGMA / 2, SIGMA))
    return [draw.randrange(10) for _ in range(min(LONGEST, max(1, length)))]


class DrawnEngine(ScriptedEngine):
    """Plays the drawn answers and takes its time for them. It names weights as every engine must."""

    def __init__(self, recipe: EngineRecipe) -> None:
        super().__init__(_rest, max_num_seqs=recipe.max_num_seqs, max_model_len=recipe.max_model_len)

    def step(self) -> list[GenerateOutput]:
        time.sleep(TOKEN)
        return super().step()

    def load(self, version: int, weights: Iterable[tuple[str, Tensor]]) -> str:
        held = list(weights)
        super().load(version, held)
        return digest(held)


def _rest(request: GenerateRequest) -> list[int]:
    return drawn_answer(request.seed, request.uid, request.session)[request.drawn :]
