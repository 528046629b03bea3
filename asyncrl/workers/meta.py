"""What the controller sends a rank instead of data: keys, and how they are cut."""

import msgspec


class MiniBatch(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One rank's rows of one optimizer step.

    ``padding`` rows (one prompt token, one response token, mask 0) follow the keys, so that every rank has the same
    number of rows; they exist on the rank only and no metric sees them.
    """

    keys: list[str]
    padding: int = 0


class BatchMeta(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One rank's share of a local update: its mini-batches in the order of the optimizer steps."""

    partition_id: str
    mini_batches: list[MiniBatch]
    step: int

    @property
    def keys(self) -> list[str]:
        """Every key of this rank, mini-batch by mini-batch."""
        return [key for mini in self.mini_batches for key in mini.keys]

    @property
    def padding(self) -> int:
        """The padding rows of all mini-batches together."""
        return sum(mini.padding for mini in self.mini_batches)
