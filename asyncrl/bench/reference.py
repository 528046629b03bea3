"""The reference's client: starts an echo process and talks to it over plain pyzmq."""

import asyncio
import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator

import zmq
import zmq.asyncio

ANSWER_MILLISECONDS = 20_000
"""A reference that does not answer for so long ends the benchmark."""
TCP = "tcp://127.0.0.1:*"


@contextlib.contextmanager
def server(kind: str, endpoint: str) -> Iterator[str]:
    """An echo process of this kind while the block runs; gives its endpoint. Raises RuntimeError when it does not start."""
    command = [sys.executable, "-m", "asyncrl.bench.echo", kind, endpoint, str(os.getpid())]
    with subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            said = process.stdout.readline().decode().strip()
            if not said:
                raise RuntimeError(f"the reference {kind!r} ended at its start, exit code {process.wait()}")
            yield said
        finally:
            process.kill()


@contextlib.contextmanager
def plain_client(kind: str, endpoint: str) -> Iterator["zmq.Socket[bytes]"]:
    """A blocking socket to a new echo process: REQ for ``small``, else DEALER."""
    with server(kind, endpoint) as address, zmq.Context() as context, context.socket(zmq.REQ if kind == "small" else zmq.DEALER) as socket:
        socket.linger = 0
        socket.rcvtimeo = ANSWER_MILLISECONDS
        socket.set_hwm(0)
        socket.connect(address)
        yield socket


class AsyncClient:
    """Calls in flight over one ``zmq.asyncio`` DEALER: the answer finds its caller by a number in front of the message."""

    def __init__(self, socket: zmq.asyncio.Socket) -> None:
        self._socket = socket
        self._number = 0
        self._waiting: dict[bytes, asyncio.Future[bytes]] = {}

    async def call(self, message: bytes) -> bytes:
        """Send and wait for the echo; ``read`` must run meanwhile."""
        self._number += 1
        number = self._number.to_bytes(8, "little")
        answer: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self._waiting[number] = answer
        await self._socket.send_multipart([number, message])
        return await answer

    async def read(self) -> None:
        """Hand every answer to its caller, for ever."""
        while True:
            number, message = await self._socket.recv_multipart()
            self._waiting.pop(number).set_result(message)


@contextlib.contextmanager
def async_client(endpoint: str) -> Iterator[AsyncClient]:
    """A client of a new ``asynchronous`` echo process."""
    with server("asynchronous", endpoint) as address, zmq.asyncio.Context() as context, context.socket(zmq.DEALER) as socket:
        socket.linger = 0
        socket.set_hwm(0)
        socket.connect(address)
        yield AsyncClient(socket)
