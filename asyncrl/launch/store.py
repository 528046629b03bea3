"""torchrun's store as a Rendezvous: addresses and pids only, never a secret, since anyone who reaches its port may read it."""

from datetime import timedelta

from torch.distributed import DistNetworkError, DistStoreError, Store  # type: ignore[attr-defined]

from asyncrl.errors import RunFailed
from asyncrl.runtime.host import Host


class StoreRendezvous:
    """``set`` and ``get`` are quick; ``wait`` blocks a worker thread, not the loop, and has a deadline."""

    def __init__(self, store: Store, host: Host, seconds: float = 120.0) -> None:
        self._store, self._host, self._seconds = store, host, seconds

    def set(self, key: str, value: bytes) -> None:
        """Publish ``value``."""
        self._store.set(key, value)  # type: ignore[arg-type]

    def get(self, key: str) -> bytes | None:
        """The value, or None when it was not set yet."""
        return bytes(self._store.get(key)) if self._store.check([key]) else None

    async def wait(self, key: str) -> bytes:
        """The value, once it is there. Raises RunFailed after the deadline, and when torchrun's store is gone."""
        try:
            await self._host.run_blocking(self._store.wait, [key], timedelta(seconds=self._seconds))
            return bytes(self._store.get(key))
        except DistStoreError as error:
            raise RunFailed(f"nobody said {key!r} within {self._seconds:g} s; a rank has not come up") from error
        except DistNetworkError as error:
            raise RunFailed(f"torchrun's store went away while {key!r} was awaited; a torchrun agent has ended") from error
