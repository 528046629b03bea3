"""The controller's part of a checkpoint, and the order in which the parts are written and read."""

from collections.abc import Sequence

import msgspec

from asyncrl.data.dataset import PromptStream, StreamState
from asyncrl.errors import CheckpointError
from asyncrl.trainer.ledger import Ledger, LedgerState
from asyncrl.trainer.stages import ScheduleMoves, Stages
from asyncrl.training.checkpoint import Checkpoint, CheckpointFolder
from asyncrl.trajectory import Kept, PartialGroup


class TrainerState(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Everything the controller needs to go on after step ``step``."""

    step: int
    data: StreamState
    ledger: LedgerState
    learning_rate_moves: int
    kl_coefficient: float
    critic_learning_rate_moves: int = 0


class Checkpoints:
    """Saves after learn and before sync; restores policy, critic, then data and ledger."""

    def __init__(self, folder: CheckpointFolder, found: Checkpoint | None, stages: Stages, prompts: PromptStream, ledger: Ledger) -> None:
        """``found``: the verified checkpoint that the run goes on from."""
        self.folder, self.found, self._stages, self._prompts, self._ledger = folder, found, stages, prompts, ledger

    async def save(self, step: int, begun: Sequence[PartialGroup]) -> None:
        """Write the checkpoint of ``step``: every rank its shards, then the controller its state and the manifest.

        ``begun`` are the answers in generation, as far as there are any.
        """
        moves = await self._stages.save(self.folder.begin(step))
        state = TrainerState(step, self._prompts.state(), self._ledger.state(), moves.policy, self._stages.kl.coefficient, moves.critic)
        self.folder.commit(step, msgspec.json.encode(state), msgspec.msgpack.encode(begun) if begun else b"")

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
