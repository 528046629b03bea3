"""The endless order in which a run uses its prompts, and the point it has reached."""

import random
import re
from collections.abc import Sequence

import msgspec

from asyncrl.data.prompts import PromptRow
from asyncrl.errors import DataError
from asyncrl.trajectory import make_uid

_UID = re.compile(r"s(?P<seed>\d+)e(?P<epoch>\d+)p(?P<position>\d+)")


class StreamState(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The next use of a prompt, and what must be equal for it to mean the same prompt."""

    epoch: int
    position: int
    """Uses of this epoch so far; smaller than ``prompts_per_epoch``."""
    seed: int
    shuffle: bool
    rows: int
    prompts_per_epoch: int


class PromptStream:
    """Prompts without end: epoch after epoch, whole batches only, each use under a uid derived from seed, epoch and position.

    With ``shuffle`` each epoch has a permutation of its own, fixed by (seed, epoch); otherwise it is the order of the
    files. An epoch uses ``rows // train_batch_size * train_batch_size`` prompts; the rest of its permutation is left out.

    Raises DataError when there are fewer rows than one batch.
    """

    def __init__(self, rows: Sequence[PromptRow], *, train_batch_size: int, seed: int, shuffle: bool) -> None:
        if len(rows) < train_batch_size:
            raise DataError(f"{len(rows)} prompts are fewer than one batch: data.train_batch_size={train_batch_size}")
        self.steps_per_epoch = len(rows) // train_batch_size
        self.prompts_per_epoch = self.steps_per_epoch * train_batch_size
        self._rows = rows
        self._seed = seed
        self._shuffle = shuffle
        self._start(epoch=0, position=0)

    @property
    def epoch(self) -> int:
        """The epoch of the next prompt, from 0."""
        return self._epoch

    @property
    def data_sources(self) -> list[str]:
        """Every data source of the rows, in the order of its first row."""
        return list(dict.fromkeys(row.data_source for row in self._rows))

    def take(self, count: int) -> list[tuple[str, PromptRow]]:
        """The next ``count`` prompts, each with the uid of this use of it; goes over into the next epoch as needed."""
        taken = []
        for _ in range(count):
            taken.append((make_uid(self._seed, self._epoch, self._position), self._rows[self._order[self._position]]))
            self._position += 1
            if self._position == self.prompts_per_epoch:
                self._start(epoch=self._epoch + 1, position=0)
        return taken

    def row(self, uid: str) -> PromptRow:
        """The prompt that a uid of this run uses. Raises DataError for another uid."""
        match = _UID.fullmatch(uid)
        if match is None or int(match["seed"]) != self._seed or int(match["position"]) >= self.prompts_per_epoch:
            raise DataError(f"{uid!r} is no prompt of this run")
        return self._rows[self._order_of(int(match["epoch"]))[int(match["position"])]]

    def state(self) -> StreamState:
        """The point that has been reached."""
        return self._state(self._epoch, self._position)

    def restore(self, state: StreamState) -> None:
        """Go on from ``state``. Raises DataError when it belongs to other data, another seed, order or batch size."""
        here = self._state(state.epoch, state.position)
        if here != state:
            raise DataError(f"the saved data position does not fit this run: saved {state}, here {here}")
        if state.epoch < 0 or not 0 <= state.position < self.prompts_per_epoch:
            raise DataError(f"no such data position: {state}")
        self._start(state.epoch, state.position)

    def _state(self, epoch: int, position: int) -> StreamState:
        return StreamState(
            epoch=epoch,
            position=position,
            seed=self._seed,
            shuffle=self._shuffle,
            rows=len(self._rows),
            prompts_per_epoch=self.prompts_per_epoch,
        )

    def _start(self, epoch: int, position: int) -> None:
        self._epoch, self._position, self._order = epoch, position, self._order_of(epoch)

    def _order_of(self, epoch: int) -> list[int]:
        order = list(range(len(self._rows)))
        if self._shuffle:
            random.Random(f"{self._seed} {epoch}").shuffle(order)
        return order
