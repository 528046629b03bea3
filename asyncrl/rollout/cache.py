"""Keys and values of the running requests: one row of slots, where the index in a slot is the position.

``S`` slots of ``L`` positions, ``H`` key-value heads of width ``D``, ``b`` rows and ``q`` new tokens a row in one forward.
A slot may hold leftovers beyond its request's length; they are finite, the attention mask hides them, later tokens
overwrite them.
"""

import torch
from torch import Tensor
from transformers.cache_utils import Cache

SMALLEST_LENGTH = 16


class SlotCache(Cache):
    """A cache that transformers' attention writes to and reads from, at positions of our choosing."""

    def __init__(self, max_slots: int, max_length: int) -> None:
        super().__init__(layers=[])
        self.max_slots, self.max_length = max_slots, max_length
        self.slots = self.length = 0
        self._stores: dict[int, tuple[Tensor, Tensor]] = {}
        self._first = self._last = self._reach = 0
        self._index = torch.empty(0, dtype=torch.int64)

    @property
    def nbytes(self) -> int:
        """Bytes held."""
        return sum(store.nbytes for pair in self._stores.values() for store in pair)

    @property
    def spare(self) -> int:
        """The flat index that takes keys nobody reads: those of padding."""
        return self.slots * self.length

    def clear(self) -> None:
        """Give all memory back."""
        self._stores.clear()
        self.slots = self.length = 0

    def reserve(self, slots: int, length: int) -> None:
        """Make room for ``slots`` requests of ``length`` positions, doubling, keeping what is stored."""
        if slots <= self.slots and length <= self.length:
            return
        old_slots, old_length = self.slots, self.length
        self.slots = max(old_slots, _doubled(1, slots, self.max_slots))
        self.length = max(old_length, _doubled(SMALLEST_LENGTH, length, self.max_length))
        for layer, pair in self._stores.items():
            grown = []
            for store in pair:
                bigger = self._empty(store)
                self._grid(bigger)[:old_slots, :old_length] = store[:-1].view(old_slots, old_length, *store.shape[1:])
                grown.append(bigger)
            self._stores[layer] = (grown[0], grown[1])

    def aim(self, first: int, last: int, reach: int, index: Tensor) -> None:
        """Say where the next forward writes and what it sees.

        It runs the slots ``first`` to ``last``, sees their positions below ``reach`` and puts token t of its [b, q]
        input at flat position ``index[t]`` (int64, [b * q]): slot * length + position.
        """
        self._first, self._last, self._reach, self._index = first, last, reach, index

    def update(self, key_states: Tensor, value_states: Tensor, layer_idx: int, *args: object, **kwargs: object) -> tuple[Tensor, Tensor]:
        """Store the [b, H, q, D] of one layer; return all that the forward may see, [b, H, reach, D]."""
        pair = self._stores.get(layer_idx)
        if pair is None:
            pair = (self._empty(key_states.transpose(1, 2)[0]), self._empty(value_states.transpose(1, 2)[0]))
            self._stores[layer_idx] = pair
        for store, states in zip(pair, (key_states, value_states), strict=True):
            store.index_copy_(0, self._index, states.transpose(1, 2).flatten(0, 1))
        keys, values = (self._grid(store)[self._first : self._last, : self._reach].transpose(1, 2) for store in pair)
        return keys, values

    def move(self, sources: list[int], targets: list[int]) -> None:
        """Copy slots over others."""
        for pair in self._stores.values():
            for store in pair:
                grid = self._grid(store)
                grid[targets] = grid[sources]

    def _empty(self, like: Tensor) -> Tensor:
        # Zeros, not uninitialised memory: what the mask hides is still multiplied, and 0 * NaN is NaN.
        return like.new_zeros(self.spare + 1, *like.shape[1:])

    def _grid(self, store: Tensor) -> Tensor:
        return store[:-1].view(self.slots, self.length, *store.shape[1:])


def _doubled(start: int, need: int, limit: int) -> int:
    size = start
    while size < need:
        size *= 2
    return min(size, limit)
