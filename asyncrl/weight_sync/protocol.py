"""The ports of a weight sync: who publishes, and who takes weights over."""

from collections.abc import Iterable, Sequence
from typing import Protocol

from torch import Tensor


class WeightReceiver(Protocol):
    """What takes weights over: a rollout engine, or its stand-in in this process."""

    def load(self, version: int, weights: Iterable[tuple[str, Tensor]]) -> str:
        """Copy whole tensors into own weights, set the version, return the digest of what is held."""
        ...


class WeightSync(Protocol):
    """Brings the trainer's weights to the rollout engines under a version."""

    def publish(self, version: int, parameters: Sequence[tuple[str, Tensor]]) -> str:
        """Send the sharded ``parameters`` of this rank; return the digest that sender and receiver agree on.

        Blocking, on the device thread, and collective. Raises WeightSyncError when a receiver holds something else.
        """
        ...
