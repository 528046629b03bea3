"""``transfer_queue.*``: the service that carries trajectories."""

from typing import Literal

import msgspec

from asyncrl.config.schema.section import Section
from asyncrl.config.schema.types import Count, Name, NonNegative


class SimpleStorage(Section, frozen=True, kw_only=True):
    """Rows in the memory of shard processes."""

    num_data_storage_units: Count = 8
    """Shards, one process each."""


class Backend(Section, frozen=True, kw_only=True):
    """Where rows are held."""

    simple_storage: SimpleStorage = msgspec.field(default_factory=SimpleStorage, name="SimpleStorage")
    """The only kind of storage."""


class TransferQueueConfig(Section, frozen=True, kw_only=True):
    """The TransferQueue."""

    backend: Backend = msgspec.field(default_factory=Backend)
    """Its storage."""
    budget_gb: NonNegative = 4.0
    """Memory of each shard for rows, in 10^9 bytes; new rows wait while it is full. 0 = no bound."""
    journal: Literal["off", "interval", "always"] | None = None
    """What shards keep on disk, to survive their own death: nothing, all with a sync each second, all with a sync before each answer;
    null = ``off`` in ``sync``, else ``interval``."""
    journal_folder: Name | None = None
    """Where the journal lies; null = in the run folder. A disk of the node is faster than a shared one, but no other node has it."""

    @property
    def shards(self) -> int:
        """Shard processes."""
        return self.backend.simple_storage.num_data_storage_units
