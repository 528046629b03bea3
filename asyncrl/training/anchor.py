"""The weights of one moment, kept beside a model that learns on."""

import contextlib
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor


class Anchor:
    """A copy of this rank's shards, on their device. Nothing in it is collective.

    A model must be resharded when its shards are exchanged; after an evaluation or an optimizer step it is.
    """

    def __init__(self, parameters: Sequence[tuple[str, Tensor]]) -> None:
        """Keep ``parameters`` as they are now."""
        self._shards = [_local(parameter) for _, parameter in parameters]
        self._kept = [shard.clone() for shard in self._shards]

    @contextlib.contextmanager
    def in_place(self) -> Iterator[None]:
        """A block in which the model has the anchored weights. After it, also after an error, it has its own, bit by bit."""
        self._exchange()
        try:
            yield
        finally:
            self._exchange()

    @torch.no_grad()
    def _exchange(self) -> None:
        for shard, kept in zip(self._shards, self._kept, strict=True):
            held = shard.clone()
            shard.copy_(kept)
            kept.copy_(held)


def _local(parameter: Tensor) -> Tensor:
    """What this rank holds of a parameter: the memory itself, without its gradient."""
    return (parameter.to_local() if isinstance(parameter, DTensor) else parameter).detach()
