"""Snapshots of a shard: sealed files of records and a manifest with their SHA-256, all of one event number.

Written from references that were taken in one turn of the loop, on a worker thread, while puts go on.
"""

import hashlib
from collections.abc import Iterator, Mapping

import msgspec

from asyncrl.errors import QueueStorageError
from asyncrl.runtime.files import StorageFolder
from asyncrl.tensors.wire import Column
from asyncrl.transfer_queue.records import Damage, PutRecord, check_format, columns_of, encode, field_heads, read
from asyncrl.transfer_queue.segments import gather, merged_origins
from asyncrl.transfer_queue.storage import RowRef, grouped

MANIFEST = "manifest.json"
FILE_BYTES = 64 << 20


class SealedFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One file of a snapshot."""

    name: str
    size: int
    sha256: str


class Manifest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a snapshot holds: everything up to change number ``event`` of that life of the shard."""

    slot: int
    incarnation: str
    event: int
    rows: int
    files: list[SealedFile]

    @property
    def size(self) -> int:
        """Bytes of all files."""
        return sum(file.size for file in self.files)


class _Writer:
    """Appends records to numbered files and hashes what it writes."""

    def __init__(self, folder: StorageFolder) -> None:
        self._folder = folder
        self.files: list[SealedFile] = []
        self._descriptor = -1
        self._size = 0
        self._hash = hashlib.sha256()

    def append(self, record: PutRecord, columns: list[Column]) -> None:
        if self._descriptor < 0:
            self._descriptor = self._folder.create(self._name)
            self._size, self._hash = 0, hashlib.sha256()
        buffers = encode(record, columns)
        self._size += self._folder.write(self._descriptor, buffers)
        for buffer in buffers:
            self._hash.update(buffer)
        if self._size >= FILE_BYTES:
            self.seal()

    @property
    def _name(self) -> str:
        return f"{len(self.files) + 1:08d}.atq"

    def seal(self) -> None:
        """Hand the open file to the disk; the next record begins another."""
        if self._descriptor >= 0:
            self._folder.sync(self._descriptor)
            self.files.append(SealedFile(self._name, self._size, self._hash.hexdigest()))
            self.close()

    def close(self) -> None:
        """Close the file that is open, if one is; harmless twice."""
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            self._folder.close(descriptor)


def write(folder: StorageFolder, slot: int, incarnation: str, event: int, rows: Mapping[str, Mapping[str, RowRef]]) -> Manifest:
    """Writes a snapshot, in place of what is in the folder; blocking. The manifest comes last. Raises QueueStorageError."""
    try:
        # What an earlier try has left; without its manifest it is nothing.
        for name in sorted(folder.names(), key=lambda name: name != MANIFEST):
            folder.remove(name)
        files = _write_rows(folder, rows)
        manifest = Manifest(slot, incarnation, event, sum(len(found) for found in rows.values()), files)
        descriptor = folder.create(f"{MANIFEST}.tmp")
        try:
            folder.write(descriptor, [msgspec.json.encode(manifest)])
            folder.sync(descriptor)
        finally:
            folder.close(descriptor)
        folder.rename(f"{MANIFEST}.tmp", MANIFEST)
    except OSError as error:
        raise QueueStorageError(folder.path, f"the snapshot of shard {slot} cannot be written: {error.strerror or error}") from error
    return manifest


def _write_rows(folder: StorageFolder, rows: Mapping[str, Mapping[str, RowRef]]) -> list[SealedFile]:
    writer = _Writer(folder)
    try:
        for partition, found in rows.items():
            for names, keys in grouped({key: tuple(row.cells) for key, row in found.items()}):
                cells = {name: [found[key].cells[name] for key in keys] for name in names}
                columns = {name: gather(chosen) for name, chosen in cells.items()}
                heads = field_heads(columns, {name: merged_origins(chosen) for name, chosen in cells.items()})
                tags = {key: found[key].tag for key in keys}
                writer.append(PutRecord(0, partition, keys, tags, heads), list(columns.values()))
        writer.seal()
    finally:
        writer.close()
    return writer.files


def load(folder: StorageFolder) -> tuple[Manifest, Iterator[tuple[PutRecord, dict[str, Column]]]]:
    """The manifest and the records of a snapshot. Raises QueueStorageError, naming the file, for anything that is not as it was written."""
    try:
        manifest = msgspec.json.decode(bytes(folder.read(MANIFEST)), type=Manifest)
    except (OSError, msgspec.DecodeError) as error:
        raise QueueStorageError(f"{folder.path}/{MANIFEST}", f"it cannot be read: {error}") from error
    return manifest, _records(folder, manifest)


def _records(folder: StorageFolder, manifest: Manifest) -> Iterator[tuple[PutRecord, dict[str, Column]]]:
    for file in manifest.files:
        path = f"{folder.path}/{file.name}"
        try:
            data = folder.read(file.name)
        except OSError as error:
            raise QueueStorageError(path, f"it cannot be read: {error.strerror or error}") from error
        check_format(path, data)
        if len(data) != file.size or hashlib.sha256(data).hexdigest() != file.sha256:
            raise QueueStorageError(path, "its size or its SHA-256 is not that of the manifest")
        for found in read(file.name, data):
            if isinstance(found, Damage) or not isinstance(found[0], PutRecord):
                raise QueueStorageError(path, "it holds something other than rows")
            yield found[0], columns_of(found[0], found[1])
