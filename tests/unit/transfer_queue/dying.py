"""A folder in memory whose process is killed at a chosen write; what it had written stays for the next one."""

from collections.abc import Sequence
from typing import Any

from asyncrl.runtime.simulated_files import MemoryFolder
from asyncrl.transfer_queue.journal import Journal
from asyncrl.transfer_queue.records import Damage
from asyncrl.transfer_queue.storage import ShardStorage
from asyncrl.transfer_queue.table import ShardTable

PATH = "/journal"


class Killed(BaseException):
    """The process is gone."""


class DyingFolder(MemoryFolder):
    """``left`` changes of files are done whole; of the next one half of what it writes, and nothing of any later one."""

    def __init__(self, files: dict[str, bytearray], left: int) -> None:
        super().__init__(PATH, files, lambda: self._dies())
        self._left, self.killed = left, False

    def _dies(self) -> bool:
        if self.killed:
            return True
        self._left -= 1
        if self._left < 0:
            self.killed = True
            raise Killed
        return False

    def write(self, descriptor: int, buffers: Sequence[Any]) -> int:
        data = b"".join(bytes(buffer) for buffer in buffers)
        if self._left == 0 and not self.killed:
            self._left = 1
            super().write(descriptor, [data[: len(data) // 2]])
            self._left = 0
        return super().write(descriptor, [data])


def opened(files: dict[str, bytearray], resume: int | None = None, left: int = 1 << 30, file_bytes: int = 2000) -> ShardStorage:
    """A shard's storage as it is after a start on these files, all of which can be read."""
    storage = ShardStorage(ShardTable(0, "life"), Journal(DyingFolder(files, left), file_bytes))
    damages: list[Damage] = storage.replay(resume)
    assert damages == []
    return storage
