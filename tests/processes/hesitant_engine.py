"""The embedded engine, slow with whatever follows its first ``FIRST`` answers until it has new weights: they find something under way."""

import time
from collections.abc import Iterable, Sequence

from torch import Tensor

from asyncrl.trajectory import FirstToken, GenerateOutput, GenerateRequest
from asyncrl.workers.engine_process import EngineRecipe

FIRST = 16
"""Answers of the first step."""
SECONDS = 0.5
"""Of a token, from there on."""


class HesitantEngine:
    """A RolloutEngine around the embedded one."""

    def __init__(self, recipe: EngineRecipe) -> None:
        self._engine = recipe.embedded()
        self._answered = 0

    @property
    def version(self) -> int:
        return self._engine.version

    @property
    def unfinished(self) -> int:
        return self._engine.unfinished

    def check(self, request: GenerateRequest) -> None:
        self._engine.check(request)

    def submit(self, requests: Sequence[GenerateRequest]) -> None:
        self._engine.submit(requests)

    def step(self) -> list[GenerateOutput]:
        if self._engine.version == 0 and self._engine.unfinished and self._answered >= FIRST:
            time.sleep(SECONDS)
        outputs = self._engine.step()
        self._answered += len(outputs)
        return outputs

    def started(self) -> list[FirstToken]:
        return self._engine.started()

    def abort(self, request_ids: Sequence[str] | None = None) -> list[GenerateOutput]:
        return self._engine.abort(request_ids)

    def sleep(self) -> None:
        self._engine.sleep()

    def load(self, version: int, weights: Iterable[tuple[str, Tensor]]) -> str:
        return self._engine.load(version, weights)
