"""A folder of files in memory, for simulated runs: it outlives the crash of the process that writes it."""

from collections.abc import Callable, Sequence
from typing import Any


class MemoryFolder:
    """A ``StorageFolder`` over a machine's ``files``, by path. Once ``dead`` says so, nothing is written any more."""

    def __init__(self, path: str, files: dict[str, bytearray], dead: Callable[[], bool]) -> None:
        self.path, self._files, self._dead = path, files, dead
        self._open: dict[int, bytearray] = {}

    def _at(self, name: str) -> str:
        return f"{self.path}/{name}"

    def names(self) -> list[str]:
        inside = f"{self.path}/"
        return sorted(name.removeprefix(inside) for name in self._files if name.startswith(inside) and "/" not in name[len(inside) :])

    def read(self, name: str) -> memoryview:
        if self._at(name) not in self._files:
            raise FileNotFoundError(2, "No such file or directory")
        return memoryview(bytes(self._files[self._at(name)]))

    def create(self, name: str) -> int:
        if self._at(name) in self._files:
            raise FileExistsError(17, "File exists")
        descriptor = len(self._open) + 3
        self._open[descriptor] = bytearray() if self._dead() else self._files.setdefault(self._at(name), bytearray())
        return descriptor

    def write(self, descriptor: int, buffers: Sequence[Any]) -> int:
        data = b"".join(bytes(buffer) for buffer in buffers)
        if not self._dead():
            self._open[descriptor] += data
        return len(data)

    def cut(self, descriptor: int, size: int) -> None:
        if not self._dead():
            del self._open[descriptor][size:]

    def truncate(self, name: str, size: int) -> None:
        if not self._dead():
            del self._files[self._at(name)][size:]

    def sync(self, descriptor: int) -> None:
        """All that was written is there."""

    def sync_file(self, name: str) -> None:
        """All that was written is there."""

    def sync_folder(self) -> None:
        """All names are there."""

    def close(self, descriptor: int) -> None:
        """Descriptors are never used again."""

    def remove(self, name: str) -> None:
        if not self._dead():
            self._files.pop(self._at(name), None)

    def rename(self, name: str, new: str) -> None:
        if not self._dead():
            self._files[self._at(new)] = self._files.pop(self._at(name))

    def inner(self, name: str) -> "MemoryFolder":
        return MemoryFolder(self._at(name), self._files, self._dead)

    def clear(self) -> None:
        for name in [name for name in self._files if name.startswith(f"{self.path}/")]:
            del self._files[name]
