"""Checkpoints on disk: written beside, checked by a manifest, and only then called by their name.

::

    RUN/global_step_K/actor/          weights and optimizer, torch.distributed.checkpoint, whatever the number of ranks
    RUN/global_step_K/critic/         the same of the critic, where there is one
    RUN/global_step_K/rng_R.safetensors
    RUN/global_step_K/trainer.json    step, data position, ledger, learning rate schedule
    RUN/global_step_K/partial.msgpack the answers that were begun and not ended, in the async modes
    RUN/global_step_K/queue/ofN/shard-S/
                                      rows of what was in flight, from shard S of N
    RUN/global_step_K/manifest.json   size and SHA-256 of every other file
    RUN/latest_checkpointed_iteration.txt

The metadata of torch.distributed.checkpoint can run code when it is read. So a folder is handed to it only after every file in it was
found to be the one that this run wrote.
"""

import hashlib
import os
import re
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import msgspec

from asyncrl.errors import CheckpointError

MANIFEST = "manifest.json"
STATE = "trainer.json"
PARTIAL = "partial.msgpack"
QUEUE = "queue"
LATEST = "latest_checkpointed_iteration.txt"
_NAME = re.compile(r"global_step_(\d+)")
_CHUNK = 1 << 20


class FileRecord(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a file must be."""

    size: int
    sha256: str


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A checkpoint whose manifest was verified."""

    step: int
    folder: str

    @property
    def state(self) -> bytes:
        """The controller's part, JSON."""
        return (Path(self.folder) / STATE).read_bytes()

    @property
    def partial(self) -> bytes:
        """The answers that were begun, MessagePack; b"" where there are none."""
        file = Path(self.folder) / PARTIAL
        return file.read_bytes() if file.exists() else b""

    def queue(self, shards: int) -> str:
        """The folder with the rows of so many shards, "" where there is none: a row lies where their number puts it."""
        folder = queue_folder(self.folder, shards)
        return folder if Path(folder).is_dir() else ""


def queue_folder(folder: str, shards: int) -> str:
    """Where a checkpoint holds the rows of so many shards."""
    return f"{folder}/{QUEUE}/of{shards}"


class CheckpointFolder:
    """The checkpoints of one run folder."""

    def __init__(self, run_folder: str, keep: int | None) -> None:
        """``keep``: how many complete checkpoints stay, None for all."""
        self._root, self._keep = Path(run_folder), keep

    def begin(self, step: int) -> str:
        """A fresh folder to write step ``step`` into. Only one is written at a time: others are torn, and are removed."""
        for torn in self._root.glob("global_step_*.partial"):
            shutil.rmtree(torn, ignore_errors=True)
        folder = self._unfinished(step)
        folder.mkdir(parents=True)
        return str(folder)

    def commit(self, step: int, state: bytes, partial: bytes = b"") -> None:
        """Make what lies in the folder of ``begin`` the checkpoint of ``step``; then remove what is over ``keep``. Blocking.

        Every file is flushed before the folder gets its name, and the name before ``latest`` points to it. Raises OSError.
        """
        self.seal(step, state, partial)
        self.name(step)
        self.point(step)
        self._retain()

    def seal(self, step: int, state: bytes, partial: bytes) -> None:
        """Add the controller's state and the manifest, and flush all of it."""
        unfinished = self._unfinished(step)
        (unfinished / STATE).write_bytes(state)
        if partial:
            (unfinished / PARTIAL).write_bytes(partial)
        records = {str(file.relative_to(unfinished)): _record(file) for file in _files(unfinished)}
        (unfinished / MANIFEST).write_bytes(msgspec.json.encode(records))
        for path in (*_files(unfinished), *(folder for folder in unfinished.rglob("*") if folder.is_dir()), unfinished):
            _flush(path)

    def name(self, step: int) -> None:
        """Give the sealed folder its name; from then on a run goes on from it."""
        final = self._root / f"global_step_{step}"
        shutil.rmtree(final, ignore_errors=True)
        self._unfinished(step).rename(final)
        _flush(self._root)

    def point(self, step: int) -> None:
        """Let ``latest`` say the step, for readers outside."""
        latest = self._root / f"{LATEST}.partial"
        latest.write_text(str(step))
        _flush(latest)
        latest.rename(self._root / LATEST)
        _flush(self._root)

    def newest(self, say: Callable[[str], None]) -> Checkpoint | None:
        """The newest checkpoint that is what its manifest says; a damaged one is named and passed over."""
        for step in sorted(self._steps(), reverse=True):
            folder = self._root / f"global_step_{step}"
            try:
                verify(folder)
            except CheckpointError as error:
                say(f"checkpoint of step {step} is refused: {error}")
            else:
                return Checkpoint(step, str(folder))
        return None

    def _unfinished(self, step: int) -> Path:
        return self._root / f"global_step_{step}.partial"

    def _steps(self) -> list[int]:
        found = [_NAME.fullmatch(path.name) for path in self._root.iterdir()] if self._root.is_dir() else []
        return [int(match[1]) for match in found if match]

    def _retain(self) -> None:
        """Counted from disk, so that checkpoints of earlier attempts count too."""
        if self._keep is not None:
            for step in sorted(self._steps(), reverse=True)[self._keep :]:
                shutil.rmtree(self._root / f"global_step_{step}")


def verify(folder: Path) -> None:
    """Raise CheckpointError unless the folder holds exactly the files of its manifest, byte for byte."""
    try:
        records = msgspec.json.decode((folder / MANIFEST).read_bytes(), type=dict[str, FileRecord])
    except (OSError, msgspec.DecodeError) as error:
        raise CheckpointError(f"{folder.name} has no readable {MANIFEST}: {error}") from error
    present = {str(file.relative_to(folder)) for file in _files(folder)} - {MANIFEST}
    if present != records.keys():
        missing, foreign = sorted(records.keys() - present), sorted(present - records.keys())
        raise CheckpointError(f"{folder.name} misses {missing or 'nothing'} and has {foreign or 'nothing'} that its manifest does not name")
    for name, record in records.items():
        found = _record(folder / name)
        if found != record:
            raise CheckpointError(f"{name} of {folder.name} is not what was written: {found.size} bytes, {record.size} in the manifest")


def _files(folder: Path) -> Iterator[Path]:
    """Regular files below a folder, in order. Raises CheckpointError for a link, which could lead out of it."""
    for path in sorted(folder.rglob("*")):
        if path.is_symlink():
            raise CheckpointError(f"{path.name} is a link")
        if path.is_file():
            yield path


def _record(file: Path) -> FileRecord:
    digest, size = hashlib.sha256(), 0
    with file.open("rb") as content:
        while chunk := content.read(_CHUNK):
            digest.update(chunk)
            size += len(chunk)
    return FileRecord(size, digest.hexdigest())


def _flush(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
