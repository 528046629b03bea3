"""``Journal``: the changes of one shard on disk, in append-only files of which the last is open.

``append`` has written a record to the kernel when it returns, so a kill of the process loses nothing that was acknowledged.
When the disk itself has it is the policy's: ``interval`` syncs once a second, ``always`` before each acknowledgement.
"""

from collections.abc import Callable, Sequence
from typing import Literal

import msgspec

from asyncrl.errors import QueueStorageError
from asyncrl.runtime.files import StorageFolder
from asyncrl.tensors.wire import Column
from asyncrl.transfer_queue.records import ClearRecord, Damage, PutRecord, Record, encode, read

Policy = Literal["off", "interval", "always"]

FILE_BYTES = 64 << 20
"""A file that has grown to this size is sealed."""
SYNC_SECONDS = 1.0
SUFFIX = ".atq"


class JournalFile(msgspec.Struct):
    """One file: its number and its bytes."""

    number: int
    size: int = 0

    @property
    def name(self) -> str:
        """Its name in the journal's folder."""
        return f"{self.number:08d}{SUFFIX}"


class Journal:
    """Files of one shard in ``folder``. One process at a time writes there."""

    def __init__(self, folder: StorageFolder, file_bytes: int = FILE_BYTES) -> None:
        self._folder, self._file_bytes = folder, file_bytes
        self.files: list[JournalFile] = []
        self.written = self.synced = 0
        """Bytes of this life that the kernel has, and that the disk has."""
        self._descriptor = -1
        self._retained: dict[int, int] = {}

    @property
    def size(self) -> int:
        """Bytes of all files."""
        return sum(file.size for file in self.files)

    @property
    def current(self) -> int:
        """The number of the open file."""
        return self.files[-1].number

    def replay(self, apply: Callable[[Record, memoryview, int], None]) -> list[Damage]:
        """Gives every whole record with its file's number, oldest first, and opens a new file behind them.

        Returns what is damaged. A torn end is cut off, so that it is told once.
        """
        damages: list[Damage] = []
        for name in sorted(name for name in self._folder.names() if name.endswith(SUFFIX)):
            data = self._folder.read(name)
            file = JournalFile(int(name.removesuffix(SUFFIX)), len(data))
            for found in read(name, data):
                if isinstance(found, Damage):
                    damages.append(found)
                    if found.torn:
                        file.size = found.offset
                        self._folder.truncate(name, found.offset)
                else:
                    apply(*found, file.number)
            self.files.append(file)
        self._open(self.files[-1].number + 1 if self.files else 1)
        return damages

    def _open(self, number: int) -> None:
        file = JournalFile(number)
        self._descriptor = self._folder.create(file.name)
        self.files.append(file)

    def append(self, record: PutRecord | ClearRecord, columns: Sequence[Column] = ()) -> int:
        """Writes a record and returns the number of its file.

        Raises QueueStorageError when the disk refuses; what was written of it is taken back.
        """
        if self.files[-1].size >= self._file_bytes:
            self._roll()
        file = self.files[-1]
        buffers = encode(record, columns)
        try:
            written = self._folder.write(self._descriptor, buffers)
        except OSError as error:
            self._folder.cut(self._descriptor, file.size)
            raise QueueStorageError(f"{self._folder.path}/{file.name}", f"{error.strerror or error}") from error
        file.size += written
        self.written += written
        return file.number

    def add_file(self, records: Sequence[tuple[Record, Sequence[Column]]]) -> int:
        """Writes records into a file of their own and returns its number: after a kill it is there whole, or not at all.

        Blocking. Raises QueueStorageError when the disk refuses.
        """
        file = JournalFile(self.current + 1)
        draft = f"{file.name}.tmp"
        self._folder.remove(draft)
        descriptor = self._folder.create(draft)
        try:
            for record, columns in records:
                file.size += self._folder.write(descriptor, encode(record, columns))
            self._folder.sync(descriptor)
        except OSError as error:
            raise QueueStorageError(f"{self._folder.path}/{draft}", f"{error.strerror or error}") from error
        finally:
            self._folder.close(descriptor)
        self._folder.rename(draft, file.name)
        self.files.append(file)
        self._roll()
        return file.number

    def _roll(self) -> None:
        before = self._descriptor
        self._open(self.files[-1].number + 1)
        # Nothing of a sealed file may be younger on the disk than what follows it.
        self._folder.sync(before)
        self._folder.close(before)

    def sync(self) -> None:
        """Hands everything that was written to the disk; blocking, for a worker thread."""
        position = self.written
        self._folder.sync(self._descriptor)
        self.synced = max(self.synced, position)

    def retain(self, number: int, step: int) -> None:
        """Rows of file ``number`` and later ones are cleared, and come back if the run resumes from before ``step``."""
        self._retained[step] = min(number, self._retained.get(step, number))

    def committed(self, step: int) -> None:
        """A checkpoint of ``step`` is on disk: clears up to it are final."""
        self._retained = {held: number for held, number in self._retained.items() if held > step}

    def oldest(self) -> JournalFile | None:
        """The oldest sealed file, unless something in it waits for a checkpoint."""
        first = self.files[0]
        kept = min(self._retained.values(), default=first.number + 1)
        return first if len(self.files) > 1 and kept > first.number else None

    def drop(self, file: JournalFile) -> None:
        """Deletes a file that no row refers to any more. Only the oldest may go: a clear acts on what is older than it."""
        assert file is self.files[0]
        self._folder.remove(file.name)
        del self.files[0]

    def close(self) -> None:
        """Syncs and closes; harmless twice."""
        if self._descriptor >= 0:
            self._folder.sync(self._descriptor)
            self._folder.close(self._descriptor)
            self._descriptor = -1
