"""``transfer_queue.*``: the service that carries trajectories."""

import msgspec

from asyncrl.config.schema.section import Section
from asyncrl.config.schema.types import Count


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

    @property
    def shards(self) -> int:
        """Shard processes."""
        return self.backend.simple_storage.num_data_storage_units
