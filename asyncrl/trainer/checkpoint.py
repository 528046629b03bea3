"""The controller's part of a checkpoint, and the order in which the parts are written and read."""

from collections.abc import Callable

import msgspec

from asyncrl.data.dataset import PromptStream, StreamState
from asyncrl.errors import CheckpointError
from asyncrl.trainer.ledger import Ledger, LedgerState
from asyncrl.trainer.stages import ScheduleMoves, Stages
from asyncrl.training.checkpoint import Checkpoint, CheckpointFolder


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

    def __init__(self, folder: CheckpointFolder, stages: Stages, prompts: PromptStream, ledger: Ledger) -> None:
        self.folder, self._stages, self._prompts, self._ledger = folder, stages, prompts, ledger

    def newest(self, say: Callable[[str], None]) -> Checkpoint | None:
        """The newest checkpoint that can be trusted."""
        return self.folder.newest(say)

    async def save(self, step: int) -> None:
        """Write the checkpoint of ``step``: every rank its shards, then the controller its state and the manifest."""
        moves = await self._stages.save(self.folder.begin(step))
        state = TrainerState(step, self._prompts.state(), self._ledger.state(), moves.policy, self._stages.kl.coefficient, moves.critic)
        self.folder.commit(step, msgspec.json.encode(state))

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
