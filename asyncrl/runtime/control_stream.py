"""The client's end of a control socket on an event loop: orders leave as the socket takes them, reports are read as they come."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from asyncrl.errors import WireError
from asyncrl.runtime.host import ControlSocket
from asyncrl.runtime.supervisor_messages import LONGEST_REPORT, FrameReader, ToClient, report_in


class ControlStream:
    """Frames out, reports in. What the other side no longer takes is dropped: its end is reported by its pidfd."""

    def __init__(self, socket: ControlSocket) -> None:
        self._socket = socket
        self._reader = FrameReader(LONGEST_REPORT)
        self._outbox = bytearray()
        self._loop: asyncio.AbstractEventLoop | None = None

    def listen(self, loop: asyncio.AbstractEventLoop, hear: Callable[[], object]) -> None:
        """``hear`` is called when there is something to read."""
        self._loop = loop
        loop.add_reader(self._socket.fileno(), hear)

    def send(self, frame: bytes) -> None:
        """Sends as soon as the socket takes it; silent after ``close``."""
        self._outbox += frame
        self._flush()

    def _flush(self) -> None:
        if self._loop is None or self._socket.fileno() < 0:
            self._outbox.clear()
            return
        try:
            while self._outbox:
                del self._outbox[: self._socket.send(self._outbox)]
        except BlockingIOError:
            self._loop.add_writer(self._socket.fileno(), self._flush)
            return
        except OSError:
            self._outbox.clear()
        self._loop.remove_writer(self._socket.fileno())

    def read(self) -> tuple[list[ToClient], bool]:
        """Reads once: what that completed, and whether more may be there. Raises WireError for what is no report."""
        data = b""
        try:
            data = self._socket.recv(65536)
            reports = [report_in(frame) for frame in self._reader.feed(data)]
        except BlockingIOError:
            return [], False
        except ConnectionError:
            reports = []
        except WireError:
            self._mute()
            raise
        if not data:
            self._mute()
        return reports, bool(data)

    def _mute(self) -> None:
        if self._loop is not None:
            self._loop.remove_reader(self._socket.fileno())

    def disconnect(self) -> None:
        """Leaves the loop and closes. Harmless twice."""
        if self._loop is not None and self._socket.fileno() >= 0:
            self._mute()
            self._loop.remove_writer(self._socket.fileno())
        self.close()

    def close(self) -> None:
        """Closes the socket and leaves the loop alone, which in a copy of this process is not its own."""
        self._socket.close()
