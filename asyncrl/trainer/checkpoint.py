"""The controller's part of a checkpoint, and the order in which the parts are written and read."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from asyncrl.data.dataset import PromptStream, StreamState
from asyncrl.errors import CheckpointError
from asyncrl.runtime.host import Host
from asyncrl.runtime.tasks import Crew, to_its_end
from asyncrl.trainer.ledger import Ledger, LedgerState
from asyncrl.trainer.stages import ScheduleMoves, Stages
from asyncrl.training.checkpoint import Checkpoint, CheckpointFolder, queue_folder
from asyncrl.trajectory import Kept, PartialGroup
from asyncrl.transfer_queue.client import TransferQueue
from asyncrl.transfer_queue.rows import Cut

CLOSE_SECONDS = 2.0
"""How long the end of a run waits for the writing of a checkpoint to notice it."""


class TrainerState(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Everything the controller needs to go on after step ``step``."""

    step: int
    data: StreamState
    ledger: LedgerState
    learning_rate_moves: int
    kl_coefficient: float
    critic_learning_rate_moves: int = 0


@dataclass(frozen=True, slots=True)
class Whole:
    """A step whose updates are all done, and whose weights are still those of now."""

    step: int
    kl_coefficient: float


class Checkpoints:
    """Saves after learn; restores policy, critic, then data and ledger.

    A checkpoint is one moment: what the ranks, the queue and the controller hold is copied before ``save`` returns, and written
    while the run goes on. One is written at a time. A kill meanwhile leaves the one before it.
    """

    def __init__(
        self,
        folder: CheckpointFolder,
        found: Checkpoint | None,
        stages: Stages,
        prompts: PromptStream,
        ledger: Ledger,
        queue: TransferQueue,
        host: Host,
    ) -> None:
        """``found``: the verified checkpoint that the run goes on from."""
        self.folder, self.found, self._stages, self._prompts, self._ledger = folder, found, stages, prompts, ledger
        self._queue, self._host = queue, host
        self._crew = Crew()
        self._writing: asyncio.Task[None] | None = None
        self._failure: CheckpointError | None = None
        self._newest = 0 if found is None else found.step
        self._whole: Whole | None = None

    @property
    def behind(self) -> bool:
        """Whether there is a whole step after the one that was saved last."""
        return self._whole is not None and self._whole.step > self._newest

    def whole(self, step: int) -> None:
        """The updates of ``step`` are done: until ``torn`` its state can be saved."""
        self._whole = Whole(step, self._stages.kl.coefficient)

    def torn(self) -> None:
        """The next update begins."""
        self._whole = None

    async def save(self, begun: Sequence[PartialGroup], trained: Sequence[str], partition: str) -> None:
        """Take the checkpoint of the step that is whole, and begin to write it, when the one before is written.

        ``begun`` are the answers in generation, as far as there are any; ``trained`` the rows of ``partition`` that are
        trained already and only not cleared yet. Raises CheckpointError when the one before could not be written.

        Once it has begun it is taken, whoever leaves: the ranks would write into the folder of a second one of the same step.
        """
        await self.settled()
        await to_its_end(lambda: self._take(begun, trained, partition))

    async def _take(self, begun: Sequence[PartialGroup], trained: Sequence[str], partition: str) -> None:
        assert self._whole is not None
        step, kl = self._whole.step, self._whole.kl_coefficient
        folder = await self._host.run_blocking(self.folder.begin, step)
        moves = await self._stages.save(folder)
        state = TrainerState(step, self._prompts.state(), self._ledger.state(), moves.policy, kl, moves.critic)
        cuts = await self._queue.cut(trained, partition) if state.ledger.in_flight else None
        self._newest = step
        partial = msgspec.msgpack.encode(begun) if begun else b""
        self._writing = self._crew.start(self._write, state, folder, partial, cuts, name=f"checkpoint of step {step}")

    async def settled(self) -> None:
        """Return when nothing is being written. Raises CheckpointError, which names the step, for one that could not be.

        consumes: the checkpoint that is being written
        waits for: its end
        unblocked by: the disk; the death of a rank or shard, which fails it
        """
        if self._writing is not None:
            await asyncio.wait([self._writing])
            self._writing = None
        failure, self._failure = self._failure, None
        if failure is not None:
            raise failure

    async def close(self) -> None:
        """Leave nothing that still writes: what is not written by now is torn, and the run goes on from the one before."""
        await self._crew.close(CLOSE_SECONDS)

    async def _write(self, state: TrainerState, folder: str, partial: bytes, cuts: list[Cut] | None) -> None:
        try:
            await self._stages.saved()
            if cuts is not None:
                await self._queue.snapshot(queue_folder(folder, self._queue.shards), cuts)
            await self._host.run_blocking(self.folder.commit, state.step, msgspec.json.encode(state), partial)
            await self._queue.committed(state.step)
        except Exception as error:
            self._failure = CheckpointError(f"the checkpoint of step {state.step} could not be written: {error}")
            self._failure.__cause__ = error

    async def restore(self, found: Checkpoint) -> int:
        """Take ``found`` over; return its step. Raises CheckpointError when it is of another kind."""
        try:
            state = msgspec.json.decode(found.state, type=TrainerState)
        except msgspec.DecodeError as error:
            raise CheckpointError(f"the state in {found.folder} cannot be read: {error}") from error
        await self._stages.restore(found.folder, ScheduleMoves(state.learning_rate_moves, state.critic_learning_rate_moves))
        self._stages.restore_kl(state.kl_coefficient)
        self._prompts.restore(state.data)
        self._ledger.restore(state.ledger)
        return state.step

    @staticmethod
    def begun(found: Checkpoint) -> dict[str, dict[str, Kept]]:
        """By uid and session, the answers that were in generation. Raises CheckpointError when they cannot be read."""
        if not found.partial:
            return {}
        try:
            groups = msgspec.msgpack.decode(found.partial, type=list[PartialGroup])
        except msgspec.DecodeError as error:
            raise CheckpointError(f"the answers in {found.folder} cannot be read: {error}") from error
        return {group.uid: group.sessions for group in groups}
