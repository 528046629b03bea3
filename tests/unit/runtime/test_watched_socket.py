"""The descriptor of a socket tells once of what has arrived; no path may swallow that."""

import asyncio
import select
import time

import pytest
import zmq

from asyncrl.runtime.watched_socket import WatchedSocket, number_option


async def test_a_send_that_fails_does_not_swallow_the_word_of_what_has_arrived(folder: str) -> None:
    loop = asyncio.get_running_loop()
    heard: asyncio.Future[bytes] = loop.create_future()
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    router, dealer = context.socket(zmq.ROUTER), context.socket(zmq.DEALER)
    router.setsockopt(zmq.ROUTER_MANDATORY, 1)
    router.bind(f"ipc://{folder}/router.sock")
    watched = WatchedSocket(router, loop, lambda frames: heard.set_result(bytes(frames[-1])))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    dealer.connect(f"ipc://{folder}/router.sock")
    dealer.send(b"hello")
    # The loop does not turn until the message is there and the descriptor says so; a little more than that does no harm.
    assert select.select([number_option(router, zmq.FD)], [], [], 5.0)[0]
    time.sleep(0.1)  # noqa: ASYNC251
    with pytest.raises(zmq.ZMQError, match="Host unreachable"):
        watched.send(b"gone", [b"gone", b"answer"])
    async with asyncio.timeout(5):
        assert await heard == b"hello"
    watched.close(0)
    dealer.close(linger=0)
    context.term()
