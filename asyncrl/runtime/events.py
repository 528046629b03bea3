"""Append-only event files: one MessagePack record after another."""

from types import TracebackType
from typing import Any, Self

import msgspec

from asyncrl.runtime.host import Host

BUFFERED = 65536
"""Bytes that are held back before they are written."""


class EventWriter:
    """Writes records to one file, for one process. A torn last record is the worst that a kill leaves behind."""

    def __init__(self, path: str, host: Host) -> None:
        self._file = host.open_append(path)
        self._encoder = msgspec.msgpack.Encoder()
        self._buffer = bytearray()

    def write(self, record: dict[str, Any] | msgspec.Struct) -> None:
        """Appends a record. Raises TypeError for one that is not plain data."""
        self._buffer += self._encoder.encode(record)
        if len(self._buffer) >= BUFFERED:
            self.flush()

    def flush(self) -> None:
        """Hands everything to the kernel."""
        self._file.write(self._buffer)
        self._file.flush()
        self._buffer.clear()

    def close(self) -> None:
        """Flushes and closes; harmless twice."""
        if not self._file.closed:
            self.flush()
            self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()
