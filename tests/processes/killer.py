"""The shipped controller, which kills processes of its own run at moments that it knows of, and tells what became of every prompt.

torchrun … -m tests.processes.killer PLAN.json config=quickstart key=value …

The plan names the file for the result and the kills in their order: a victim, and the step from which on it is killed as soon as
a session runs, a group has finished, and the ``patience`` of that kill in such moments has passed; in training, or in a validation.
"""

import asyncio
import contextlib
import dataclasses
import functools
import os
import signal
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec
import psutil

from asyncrl.launch import __main__ as launch
from asyncrl.launch.controller import tracked_trainer
from asyncrl.launch.revival import Revival
from asyncrl.launch.session import Session, say
from asyncrl.metrics import Metrics
from asyncrl.runtime.directory import Directory
from asyncrl.runtime.tasks import running
from asyncrl.trainer.batch import KVBatchMeta
from asyncrl.trainer.feeder import Feeder, Issue
from asyncrl.trainer.learned import Learned
from asyncrl.trainer.ledger import LedgerState
from asyncrl.trainer.stages import Stages
from asyncrl.trainer.trainer import Trainer
from asyncrl.trajectory import Status
from asyncrl.transfer_queue.client import Change, Snapshot
from asyncrl.transfer_queue.keys import placement
from asyncrl.workers.meta import BatchMeta


class Kill(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One kill of a plan."""

    victim: str
    step: int
    patience: int = 0
    partition: str = "train"
    """Whose groups run and have finished at that moment."""


class Plan(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What the controller is to do, and where the ``Record`` goes."""

    record: str
    kills: list[Kill]


class Killed(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A kill as it was: at which step, and how many groups ran and had finished at that moment."""

    victim: str
    step: int
    running: int
    finished: int


class Record(msgspec.Struct, forbid_unknown_fields=True):
    """What a run leaves: noted beside the ledger, by those who did it."""

    kills: list[Killed] = []
    issues: list[tuple[str, int]] = []
    """Each issue of a prompt: uid and lease."""
    rows: list[tuple[int, str, list[int]]] = []
    """Step, key and tokens of every row that advantages were computed for."""
    learned: list[tuple[int, str]] = []
    """Step and key of every row that the policy learned from."""
    ledger: LedgerState | None = None


class NotingFeeder(Feeder):
    """Notes what is issued."""

    def note(self, record: Record) -> "NotingFeeder":
        self._record = record
        return self

    async def issue(self, issues: Sequence[Issue]) -> list[Issue]:
        self._record.issues += [(issue.uid, issue.lease) for issue in issues]
        return await super().issue(issues)


@dataclasses.dataclass(slots=True)
class NotingStages(Stages):
    """Notes what is trained."""

    record: Record

    async def advantages(self, batch: KVBatchMeta, shares: Sequence[BatchMeta]) -> tuple[list[float], Metrics]:
        columns = await self.queue.kv_batch_get(batch.keys, batch.partition_id, ["responses"])
        answers = columns["responses"].to_list()
        self.record.rows += [(batch.step, key, answer) for key, answer in zip(batch.keys, answers, strict=True)]
        return await Stages.advantages(self, batch, shares)

    async def update(self, shares: Sequence[BatchMeta]) -> Learned:
        self.record.learned += [(share.step, key) for share in shares for key in share.keys]
        return await Stages.update(self, shares)


class Killer:
    """Follows the markers of the run, and kills by its plan.

    consumes: watch events of the markers
    produces: dead processes
    waits for: the next event
    unblocked by: whoever puts a marker
    """

    def __init__(self, kills: Sequence[Kill], record: Record, trainer: Trainer, shards: int) -> None:
        self._left, self._record, self._trainer, self._shards = list(kills), record, trainer, shards
        self._statuses: dict[str, dict[str, Status]] = {"train": {}, "val": {}}
        self._patience = 0
        self._pid: int | None = None

    async def run(self) -> None:
        """Follow until cancelled."""
        await asyncio.gather(*(self._follow(partition) for partition in self._statuses))

    async def _follow(self, partition: str) -> None:
        async for event in self._trainer.parts.queue.watch(partition, where={"is_prompt": True}):
            self._statuses[partition] = statuses = self._heard(self._statuses[partition], event)
            counts = Counter(statuses.values())
            kill = self._left[0] if self._left and self._left[0].partition == partition else None
            if kill is not None and counts[Status.RUNNING] and counts[Status.FINISHED] and self._trainer.step >= kill.step:
                self._meet(kill, counts)

    def _heard(self, statuses: Mapping[str, Status], event: Snapshot | Change) -> dict[str, Status]:
        replaced = isinstance(event, Snapshot)
        kept = {uid: status for uid, status in statuses.items() if not (replaced and placement(uid, self._shards) == event.slot)}
        gone = [uid for uid, tag in event.rows.items() if tag is None]
        heard = {uid: Status(tag["status"]) for uid, tag in event.rows.items() if tag is not None}
        return {uid: status for uid, status in (kept | heard).items() if uid not in gone}

    def _meet(self, kill: Kill, counts: Counter[Status]) -> None:
        """A moment that a kill waits for. The first ones pass: one to find the victim, which takes a while, then its patience."""
        if self._pid is None:
            self._pid, self._patience = pid_of(kill.victim), kill.patience
        elif self._patience:
            self._patience -= 1
        else:
            os.kill(self._pid, signal.SIGKILL)
            done = Killed(kill.victim, self._trainer.step, counts[Status.RUNNING], counts[Status.FINISHED])
            counts_of = f"{done.running} groups running, {done.finished} finished in {kill.partition!r}"
            say(f"killed {kill.victim} (pid {self._pid}) at step {done.step}: {counts_of}")
            self._record.kills.append(done)
            del self._left[0]
            self._pid = None


def pid_of(name: str) -> int | None:
    """The process of this run that has this name, where it lives now."""
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if f"asyncrl:{name}" in process.cmdline() and process.environ().get("TMPDIR") == os.environ["TMPDIR"]:
                return process.pid
    return None


async def train(plan: Plan, session: Session) -> None:
    """As the shipped ``train``, with parts that note what they do, and the killer beside."""
    record = Record()
    with tracked_trainer(session) as trainer:
        parts, shipped = trainer.parts, trainer.parts.stages
        roles = {field.name: getattr(shipped, field.name) for field in dataclasses.fields(shipped)}
        trainer.parts = dataclasses.replace(parts, stages=NotingStages(**roles, record=record))
        feeder = parts.flow.feeder
        parts.flow.feeder = NotingFeeder(parts.queue, feeder.agents, feeder.settings).note(record)
        assert session.system.directory is not None
        revival = Revival(session.system.ref(session.system.directory, Directory), session.cluster, trainer.worker_died)
        killer = Killer(plan.kills, record, trainer, session.loaded.config.transfer_queue.shards)
        async with running(revival.run, killer.run):
            await trainer.run()
    record.ledger = parts.flow.ledger.state()
    await asyncio.to_thread(Path(plan.record).write_bytes, msgspec.json.encode(record))


def main() -> int:
    """Entry of each rank."""
    plan = msgspec.json.decode(Path(sys.argv[1]).read_bytes(), type=Plan)
    return launch.main(sys.argv[2:], controller=functools.partial(train, plan))


if __name__ == "__main__":
    sys.exit(main())
