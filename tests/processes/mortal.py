"""The shipped controller, killed with SIGKILL at one point of one step in its first attempt.

torchrun --max-restarts 1 … -m tests.processes.mortal POINT STEP config=quickstart key=value …
"""

import asyncio
import dataclasses
import functools
import os
import signal
import sys
from collections.abc import Sequence

from asyncrl.launch import __main__ as launch
from asyncrl.launch.controller import build_trainer, open_trackers
from asyncrl.launch.session import Session, say
from asyncrl.observe.console import ConsoleTracker
from asyncrl.trainer.checkpoint import Checkpoints
from asyncrl.trainer.feeder import Feeder, Issue
from asyncrl.trainer.learned import Learned
from asyncrl.trainer.stages import ScheduleMoves, Stages
from asyncrl.trainer.trainer import Trainer
from asyncrl.workers.meta import BatchMeta

POINTS = ("generating", "learning", "saving", "saved", "synced", "interrupted")


def die() -> None:
    """End this rank as nothing it could catch would."""
    os.kill(os.getpid(), signal.SIGKILL)


class Fate:
    """Whether the end has come."""

    def __init__(self, point: str, step: int) -> None:
        self.point, self.step = point, step
        self.trainer: Trainer | None = None

    def meets(self, point: str) -> bool:
        """True at the chosen point of the chosen step of the first attempt."""
        assert self.trainer is not None
        first = os.environ["TORCHELASTIC_RESTART_COUNT"] == "0"
        return first and point == self.point and self.trainer.step == self.step


class MortalFeeder(Feeder):
    """Dies a moment after the groups were issued."""

    def doom(self, fate: Fate) -> "MortalFeeder":
        self._fate = fate
        return self

    async def issue(self, issues: Sequence[Issue]) -> list[Issue]:
        refused = await super().issue(issues)
        if self._fate.meets("generating"):
            die()
        return refused


@dataclasses.dataclass(slots=True)
class MortalStages(Stages):
    """Dies inside learn, or around the sync."""

    fate: Fate

    async def update(self, shares: Sequence[BatchMeta]) -> Learned:
        if self.fate.meets("learning"):
            asyncio.get_running_loop().call_later(0.02, die)
        return await Stages.update(self, shares)

    async def save(self, folder: str) -> ScheduleMoves:
        moves = await Stages.save(self, folder)
        if self.fate.meets("saving"):
            die()
        return moves

    async def publish(self, version: int) -> str:
        if self.fate.meets("interrupted"):
            os.kill(os.getpid(), signal.SIGINT)
        if self.fate.meets("saved"):
            die()
        digest = await Stages.publish(self, version)
        if self.fate.meets("synced"):
            die()
        return digest


async def train(fate: Fate, session: Session) -> None:
    """As the shipped ``train``, with mortal parts."""
    console = ConsoleTracker(session.total_steps)
    trackers = open_trackers(session.loaded.config, session.folder, console, session.tokenizer, say)
    trainer = fate.trainer = build_trainer(session, trackers, say)
    parts, shipped = trainer.parts, trainer.parts.stages
    roles = {field.name: getattr(shipped, field.name) for field in dataclasses.fields(shipped)}
    stages = MortalStages(**roles, fate=fate)
    shipped_feeder = parts.flow.feeder
    parts.flow.feeder = MortalFeeder(parts.queue, shipped_feeder.agents, shipped_feeder.settings).doom(fate)
    checkpoints = Checkpoints(parts.checkpoints.folder, parts.checkpoints.found, stages, parts.prompts, parts.flow.ledger)
    trainer.parts = dataclasses.replace(parts, stages=stages, checkpoints=checkpoints)
    await trainer.run()
    trackers.finish()


if __name__ == "__main__":
    sys.exit(launch.main(sys.argv[3:], controller=functools.partial(train, Fate(sys.argv[1], int(sys.argv[2])))))
