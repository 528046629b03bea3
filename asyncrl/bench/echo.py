"""The reference's server: pyzmq and nothing of the runtime.

Run as ``python -m asyncrl.bench.echo KIND ENDPOINT PARENT_PID``; prints the endpoint that it bound to, then serves until
it is killed or its parent ends.
"""

import functools
import signal
import sys
from collections.abc import Callable, Mapping

import zmq
import zmq.asyncio

from asyncrl.runtime.host import die_with_parent, run_main

PUT, GET = b"put", b"get"


def bound(kind: int, endpoint: str) -> "zmq.Socket[bytes]":
    """A socket without limits on its queues; says where it was bound."""
    socket: zmq.Socket[bytes] = zmq.Context.instance().socket(kind)
    socket.set_hwm(0)
    socket.bind(endpoint)
    print(socket.get_string(zmq.LAST_ENDPOINT).rstrip("\0"), flush=True)
    return socket


def small(endpoint: str) -> None:
    """Answers each request with its own bytes: REP, one frame."""
    socket = bound(zmq.REP, endpoint)
    while True:
        socket.send(socket.recv())


def large(endpoint: str) -> None:
    """Answers with the very frames, not copied in Python: ROUTER."""
    socket = bound(zmq.ROUTER, endpoint)
    while True:
        socket.send_multipart(socket.recv_multipart(copy=False), copy=False)


def store(endpoint: str) -> None:
    """Keeps the frames of the last PUT and gives them to every GET: ROUTER."""
    socket = bound(zmq.ROUTER, endpoint)
    kept: list[zmq.Frame] = []
    while True:
        sender, order, *frames = socket.recv_multipart(copy=False)
        if order.bytes == PUT:
            kept = frames
            socket.send_multipart([sender, order], copy=False)
        else:
            socket.send_multipart([sender, *kept], copy=False)


def asynchronous(endpoint: str) -> None:
    """Answers with the very frames, on an event loop: ``zmq.asyncio``."""
    run_main(functools.partial(_asynchronous, endpoint))


async def _asynchronous(endpoint: str) -> None:
    socket = zmq.asyncio.Socket(bound(zmq.ROUTER, endpoint))
    while True:
        await socket.send_multipart(await socket.recv_multipart())


KINDS: Mapping[str, Callable[[str], None]] = {"small": small, "large": large, "store": store, "asynchronous": asynchronous}


def main() -> None:
    """Entry of the process."""
    kind, endpoint, parent = sys.argv[1:]
    die_with_parent(signal.SIGKILL, int(parent))
    # The benchmark decides; an interrupt at the terminal reaches it too.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    KINDS[kind](endpoint)


if __name__ == "__main__":
    main()
