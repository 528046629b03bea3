"""The shipped controller, killed with SIGKILL at one point of one step: its rank alone, or the whole job.

    torchrun ... -m tests.processes.mortal POINT STEP config=quickstart key=value ...

``POINT`` is one of ``POINTS``, or "job/" and one of them: then torchrun and every process below it are killed at once. A rank dies in
the first attempt of torchrun only. Each step that was learned is a line of ``learned.txt`` in the run folder, with its rows.
"""

import asyncio
import dataclasses
import functools
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

import psutil

from asyncrl.launch import __main__ as launch
from asyncrl.launch.controller import build_trainer, open_trackers
from asyncrl.launch.session import Session, say
from asyncrl.observe.console import ConsoleTracker
from asyncrl.trainer.checkpoint import Checkpoints
from asyncrl.trainer.feeder import Feeder, Issue
from asyncrl.trainer.groups import Group
from asyncrl.trainer.learned import Learned
from asyncrl.trainer.sampler import Ask, Choice, Sampler
from asyncrl.trainer.stages import ScheduleMoves, Stages
from asyncrl.trainer.trainer import Trainer
from asyncrl.training.checkpoint import CheckpointFolder
from asyncrl.workers.meta import BatchMeta

POINTS = {
    "generating": "the prompts are issued",
    "gathering": "one group has settled, another has not",
    "learning": "20 ms in learn",
    "learned": "between learn and save",
    "saving": "the state is copied, the ranks begin to write",
    "written": "the ranks have written",
    "sealed": "the manifest is flushed, the folder has not its name",
    "named": "the folder has its name, `latest` does not say so",
    "saved": "between save and sync",
    "synced": "after the sync",
}
"""Where it may die, and what has happened there."""
LEARNED = "learned.txt"
SAVING = ("trainer.save_freq=1", "trainer.test_freq=-1", "trainer.val_before_train=false")
"""Options of the runs that die here: a checkpoint of each step, and nothing else that takes time."""


class Fate:
    """Whether the end has come."""

    def __init__(self, point: str, step: int) -> None:
        scope, _, self.point = point.rpartition("/")
        self._whole, self.step = scope == "job", step
        self.trainer: Trainer | None = None
        self._family: list[psutil.Process] = []

    def begin(self, trainer: Trainer) -> None:
        """Everything that belongs to the job is there."""
        self.trainer = trainer
        agent = psutil.Process().parent()
        assert agent is not None
        self._family = [agent, *agent.children(recursive=True)] if self._whole else []

    def meets(self, point: str, step: int | None = None) -> bool:
        """True at the chosen point of the chosen step, of the first attempt where torchrun starts another one."""
        assert self.trainer is not None
        now = self.trainer.step if step is None else step
        first = os.environ["TORCHELASTIC_RESTART_COUNT"] == "0"
        return first and (point, now) == (self.point, self.step)

    def die(self) -> None:
        """End as nothing that could be caught would."""
        for process in self._family:
            if process.pid != os.getpid():
                process.kill()
        os.kill(os.getpid(), signal.SIGKILL)


class MortalFeeder(Feeder):
    """Dies a moment after the groups were issued."""

    def doom(self, fate: Fate) -> "MortalFeeder":
        self._fate = fate
        return self

    async def issue(self, issues: Sequence[Issue]) -> list[Issue]:
        refused = await super().issue(issues)
        if self._fate.meets("generating"):
            self._fate.die()
        return refused


class MortalSampler:
    """Dies when some groups have settled and others have not."""

    def __init__(self, sampler: Sampler, fate: Fate) -> None:
        self._sampler, self._fate = sampler, fate

    def choose(self, groups: Sequence[Group], ask: Ask) -> Choice:
        settled = sum(group.settled for group in groups)
        if self._fate.meets("interrupted in generation") and 0 < settled < len(groups):
            os.kill(os.getpid(), signal.SIGINT)
        if self._fate.meets("gathering") and 0 < settled < len(groups):
            self._fate.die()
        return self._sampler.choose(groups, ask)


class MortalFolder(CheckpointFolder):
    """Dies around the moment in which a checkpoint gets its name."""

    def doom(self, fate: Fate) -> "MortalFolder":
        self._fate = fate
        return self

    def seal(self, step: int, state: bytes, partial: bytes) -> None:
        super().seal(step, state, partial)
        if self._fate.meets("sealed", step):
            self._fate.die()

    def name(self, step: int) -> None:
        super().name(step)
        if self._fate.meets("named", step):
            self._fate.die()


@dataclasses.dataclass(slots=True)
class MortalStages(Stages):
    """Dies in learn, or around save and sync."""

    fate: Fate
    learned: Path
    writing: int = 0
    """The step of the checkpoint that is being written."""

    async def update(self, shares: Sequence[BatchMeta]) -> Learned:
        if self.fate.meets("learning"):
            asyncio.get_running_loop().call_later(0.02, self.fate.die)
        learned = await Stages.update(self, shares)
        assert self.fate.trainer is not None
        with self.learned.open("a") as file:
            file.write(f"{self.fate.trainer.step} {learned.rows}\n")
        return learned

    async def save(self, folder: str) -> ScheduleMoves:
        if self.fate.meets("learned"):
            self.fate.die()
        moves = await Stages.save(self, folder)
        assert self.fate.trainer is not None
        self.writing = self.fate.trainer.step
        if self.fate.meets("saving"):
            self.fate.die()
        return moves

    async def saved(self) -> None:
        await Stages.saved(self)
        if self.fate.meets("written", self.writing):
            self.fate.die()

    async def publish(self, version: int) -> str:
        assert self.fate.trainer is not None
        checkpoints = self.fate.trainer.parts.checkpoints
        if self.fate.meets("interrupted"):
            os.kill(os.getpid(), signal.SIGINT)
        if self.fate.meets("saved"):
            await checkpoints.settled()
            self.fate.die()
        digest = await Stages.publish(self, version)
        if self.fate.meets("synced"):
            await checkpoints.settled()
            self.fate.die()
        return digest


async def train(fate: Fate, session: Session) -> None:
    """As the shipped ``train``, with mortal parts."""
    console = ConsoleTracker(session.total_steps)
    trackers = open_trackers(session.loaded.config, session.folder, console, session.tokenizer, say)
    trainer = build_trainer(session, trackers, say)
    parts, shipped, flow = trainer.parts, trainer.parts.stages, trainer.parts.flow
    roles = {field.name: getattr(shipped, field.name) for field in dataclasses.fields(shipped)}
    stages = MortalStages(**roles, fate=fate, learned=session.folder.path / LEARNED)
    flow.feeder = MortalFeeder(parts.queue, flow.feeder.agents, flow.feeder.settings).doom(fate)
    flow.sampler = MortalSampler(flow.sampler, fate)
    folder = MortalFolder(str(session.folder.path), session.loaded.config.trainer.max_actor_ckpt_to_keep).doom(fate)
    checkpoints = Checkpoints(folder, session.checkpoint, stages, parts.prompts, flow.ledger, parts.queue, parts.host)
    trainer.parts = dataclasses.replace(parts, stages=stages, checkpoints=checkpoints)
    fate.begin(trainer)
    try:
        await trainer.run()
    finally:
        trackers.finish()


if __name__ == "__main__":
    sys.exit(launch.main(sys.argv[3:], controller=functools.partial(train, Fate(sys.argv[1], int(sys.argv[2])))))
