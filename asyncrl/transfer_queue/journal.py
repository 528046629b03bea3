"""``Journal``: the changes of one shard on disk, in append-only files of which the last is open.

``append`` has written a record to the kernel when it returns, so a kill of the process loses nothing that was acknowledged.
When the disk itself has it is the policy's: ``interval`` syncs once a second, ``always`` before each acknowledgement.
"""

import contextlib
from collections.abc import Callable, Iterable, Sequence
from typing import Literal

import msgspec

from asyncrl.errors import QueueStorageError
from asyncrl.runtime.files import StorageFolder
from asyncrl.tensors.wire import Column
from asyncrl.transfer_queue.records import ClearRecord, Damage, PutRecord, Record, check_format, encode, read

Policy = Literal["off", "interval", "always"]

FILE_BYTES = 64 << 20
"""A file that has grown to this size is sealed."""
SYNC_SECONDS = 1.0
SUFFIX = ".atq"
DRAFT = f"{SUFFIX}.draft"
STARTED = "started-"


class JournalFile(msgspec.Struct):
    """One file: its number and its bytes."""

    number: int
    size: int = 0

    @property
    def name(self) -> str:
        """Its name in the journal's folder."""
        return f"{self.number:08d}{SUFFIX}"


class Unsynced(msgspec.Struct, frozen=True):
    """What the disk is still to take: everything up to byte ``position``, in files that are sealed and the one that is open."""

    position: int
    sealed: list[int]
    current: int
    named: bool
    """Whether files have been made since."""


class Journal:
    """Files of one shard in ``folder``. One process at a time writes there."""

    def __init__(self, folder: StorageFolder, file_bytes: int = FILE_BYTES) -> None:
        self._folder, self._file_bytes = folder, file_bytes
        self.files: list[JournalFile] = []
        self.written = self.synced = 0
        """Bytes of this life that the kernel has, and that the disk has."""
        self._descriptor = -1
        self._sealed: list[int] = []
        self._named = self._spoilt = False
        self._retained: dict[int, int] = {}

    @property
    def size(self) -> int:
        """Bytes of all files."""
        return sum(file.size for file in self.files)

    @property
    def current(self) -> int:
        """The number of the open file."""
        return self.files[-1].number

    def start(self, attempt: str, *, first: bool) -> bool:
        """A start in this attempt begins, ``first``: of its first life. Returns whether an earlier one came to its end."""
        names = self._folder.names()
        if not first and f"{STARTED}{attempt}" in names:
            return True
        for name in names:
            if name.startswith(STARTED):
                self._folder.remove(name)
        return False

    def started(self, attempt: str) -> None:
        """A start in this attempt has come to its end: what it took over or wrote down holds for later lives of the attempt."""
        name = f"{STARTED}{attempt}"
        if name not in self._folder.names():
            self._folder.close(self._folder.create(name))
            self._folder.sync_folder()

    def replay(self, apply: Callable[[Record, memoryview, int], None], damaged: Callable[[Damage], None]) -> None:
        """Gives every whole record with its file's number, and what is damaged, oldest first, and opens a new file behind them.

        The disk has all that was given. A torn end is cut off, so that it is told once. Raises QueueStorageError for files of
        another format.
        """
        self._remove_drafts()
        for name in sorted(name for name in self._folder.names() if name.endswith(SUFFIX)):
            # A kill may have come before the disk had all that the kernel had.
            self._folder.sync_file(name)
            data = self._folder.read(name)
            check_format(f"{self._folder.path}/{name}", data)
            file = JournalFile(int(name.removesuffix(SUFFIX)), len(data))
            for found in read(name, data):
                if isinstance(found, Damage):
                    damaged(found)
                    if found.torn:
                        file.size = found.offset
                        self._folder.truncate(name, found.offset)
                else:
                    apply(*found, file.number)
            self.files.append(file)
        self._open(self.files[-1].number + 1 if self.files else 1)
        self._folder.sync_folder()

    def _remove_drafts(self) -> None:
        """Remove what a kill has left of ``add_files``: its drafts, and the files behind the first of them."""
        names = self._folder.names()
        drafts = sorted(name for name in names if name.endswith(DRAFT))
        if drafts:
            for name in names:
                if name.endswith(SUFFIX) and name > drafts[0].removesuffix(DRAFT) + SUFFIX:
                    self._folder.remove(name)
            self._folder.sync_folder()
            # The first goes last: while it is there, what is behind it is known not to hold.
            for name in reversed(drafts):
                self._folder.remove(name)
            self._folder.sync_folder()

    def _open(self, number: int) -> None:
        file = JournalFile(number)
        self._descriptor = self._folder.create(file.name)
        self._named = True
        self.files.append(file)

    def append(self, record: PutRecord | ClearRecord, columns: Sequence[Column] = ()) -> int:
        """Writes a record and returns the number of its file.

        Raises QueueStorageError when the disk refuses; what was written of it is taken back.
        """
        file = self.files[-1]
        try:
            if file.size >= self._file_bytes or self._spoilt:
                file = self._roll()
            written = self._folder.write(self._descriptor, encode(record, columns))
        except OSError as error:
            self._take_back(file.size)
            raise QueueStorageError(f"{self._folder.path}/{file.name}", f"{error.strerror or error}") from error
        file.size += written
        self.written += written
        return file.number

    def _take_back(self, size: int) -> None:
        """Cut the open file to its whole records; where even that is refused, nothing more is written behind the torn one."""
        try:
            self._folder.cut(self._descriptor, size)
        except OSError:
            self._spoilt = True

    def add_files(self, records: Iterable[tuple[Record, Sequence[Column]]], added: Callable[[Record, Sequence[Column], int], None]) -> None:
        """Writes records into files of their own: after a kill all of them are there, or none.

        ``added`` is called with each record and its file's number. Blocking. Raises QueueStorageError when the disk refuses.
        """
        try:
            files = self._add_drafts(records, added)
            # The first comes last: while it is a draft, those behind it do not hold.
            for file in reversed(files):
                self._folder.rename(_draft(file), file.name)
        except BaseException as error:
            with contextlib.suppress(OSError):
                self._remove_drafts()
            if isinstance(error, OSError):
                raise QueueStorageError(self._folder.path, f"rows cannot be written down anew: {error.strerror or error}") from error
            raise
        if files:
            self.files += files
            self._roll()

    def _add_drafts(
        self, records: Iterable[tuple[Record, Sequence[Column]]], added: Callable[[Record, Sequence[Column], int], None]
    ) -> list[JournalFile]:
        files: list[JournalFile] = []
        descriptor = -1
        try:
            for record, columns in records:
                if descriptor < 0 or files[-1].size >= self._file_bytes:
                    full, descriptor = descriptor, -1
                    self._finish(full)
                    files.append(JournalFile(self.current + 1 + len(files)))
                    descriptor = self._folder.create(_draft(files[-1]))
                files[-1].size += self._folder.write(descriptor, encode(record, columns))
                added(record, columns, files[-1].number)
        finally:
            self._finish(descriptor)
        self._folder.sync_folder()
        return files

    def _finish(self, descriptor: int) -> None:
        if descriptor >= 0:
            try:
                self._folder.sync(descriptor)
            finally:
                self._folder.close(descriptor)

    def _roll(self) -> JournalFile:
        """Seal the open file and open the next one. The disk takes the sealed one with the next ``sync``."""
        before = self._descriptor
        self._open(self.files[-1].number + 1)
        self._sealed.append(before)
        self._spoilt = False
        return self.files[-1]

    def unsynced(self) -> Unsynced:
        """What ``sync`` is to hand to the disk; the sealed files in it are its own from now on."""
        work = Unsynced(self.written, self._sealed, self._descriptor, self._named)
        self._sealed, self._named = [], False
        return work

    def sync(self, work: Unsynced) -> None:
        """Hands what was written to the disk; blocking, for a worker thread. Raises QueueStorageError.

        The names of files come first, then the sealed ones in their order: nothing of a file is to be younger there than
        what follows it.
        """
        try:
            if work.named:
                self._folder.sync_folder()
            for descriptor in work.sealed:
                self._finish(descriptor)
            self._folder.sync(work.current)
        except OSError as error:
            raise QueueStorageError(self._folder.path, f"the disk does not take the journal: {error.strerror or error}") from error
        self.synced = max(self.synced, work.position)

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
            self.sync(self.unsynced())
            self._folder.close(self._descriptor)
            self._descriptor = -1


def _draft(file: JournalFile) -> str:
    return f"{file.number:08d}{DRAFT}"
