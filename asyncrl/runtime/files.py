"""Files of a folder that one process writes: the disk's half of ``Host``, for what must survive a kill."""

import os
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

MOST_BUFFERS = 1000
"""Buffers of one system call; Linux takes 1,024."""


class StorageFolder(Protocol):
    """A folder of append-only files. All of it blocks; writing to the kernel's memory is quick, ``sync`` is not."""

    path: str

    def names(self) -> list[str]:
        """The files in it, in the order of their names."""
        ...

    def read(self, name: str) -> memoryview:
        """All bytes of a file. Raises OSError."""
        ...

    def create(self, name: str) -> int:
        """A new file that is open for appending; its descriptor. Its name is on disk after ``sync_folder``.

        Raises OSError, also when the file exists.
        """
        ...

    def write(self, descriptor: int, buffers: Sequence[Any]) -> int:
        """Appends all buffers and returns their bytes. Raises OSError; then part of them may be written."""
        ...

    def cut(self, descriptor: int, size: int) -> None:
        """Takes back what lies behind ``size`` bytes of an open file."""
        ...

    def truncate(self, name: str, size: int) -> None:
        """Cuts a closed file to ``size`` bytes."""
        ...

    def sync(self, descriptor: int) -> None:
        """Returns when the disk has all that was written. Raises OSError."""
        ...

    def sync_file(self, name: str) -> None:
        """As ``sync``, of a closed file."""
        ...

    def sync_folder(self) -> None:
        """Returns when the disk has the names of all files as they are. Raises OSError."""
        ...

    def close(self, descriptor: int) -> None:
        """Closes a file."""
        ...

    def remove(self, name: str) -> None:
        """Deletes a file; harmless when it is gone."""
        ...

    def rename(self, name: str, new: str) -> None:
        """Replaces file ``new`` by file ``name``, and syncs the folder."""
        ...

    def inner(self, name: str) -> "StorageFolder":
        """A folder in this one, made where absent."""
        ...

    def clear(self) -> None:
        """Deletes the folder and all that is in it."""
        ...


class DiskFolder:
    """The shipped ``StorageFolder``."""

    def __init__(self, path: str) -> None:
        self.path = path
        Path(path).mkdir(parents=True, exist_ok=True, mode=0o700)

    def names(self) -> list[str]:
        return sorted(os.listdir(self.path))

    def read(self, name: str) -> memoryview:
        with open(f"{self.path}/{name}", "rb") as file:
            return memoryview(file.read())

    def create(self, name: str) -> int:
        return os.open(f"{self.path}/{name}", os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC, 0o600)

    def write(self, descriptor: int, buffers: Sequence[Any]) -> int:
        views = [memoryview(buffer).cast("B") for buffer in buffers]
        total = 0
        while views:
            written = os.writev(descriptor, views[:MOST_BUFFERS])
            total += written
            while views and written >= len(views[0]):
                written -= len(views.pop(0))
            if written:
                views[0] = views[0][written:]
        return total

    def cut(self, descriptor: int, size: int) -> None:
        os.ftruncate(descriptor, size)

    def truncate(self, name: str, size: int) -> None:
        os.truncate(f"{self.path}/{name}", size)

    def sync(self, descriptor: int) -> None:
        os.fdatasync(descriptor)

    def sync_file(self, name: str) -> None:
        self._sync_path(f"{self.path}/{name}", os.O_RDONLY)

    def sync_folder(self) -> None:
        self._sync_path(self.path, os.O_RDONLY | os.O_DIRECTORY)

    def _sync_path(self, path: str, flags: int) -> None:
        descriptor = os.open(path, flags | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def close(self, descriptor: int) -> None:
        os.close(descriptor)

    def remove(self, name: str) -> None:
        Path(self.path, name).unlink(missing_ok=True)

    def rename(self, name: str, new: str) -> None:
        os.replace(f"{self.path}/{name}", f"{self.path}/{new}")
        self.sync_folder()

    def inner(self, name: str) -> "DiskFolder":
        return DiskFolder(f"{self.path}/{name}")

    def clear(self) -> None:
        shutil.rmtree(self.path, ignore_errors=True)
