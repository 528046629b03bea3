"""Connections that do not speak ZMTP, or almost: random bytes, broken greetings, old revisions, and silence."""

import asyncio
import contextlib
import random
import socket
import struct
from functools import partial

import pytest

from tests.fuzz.fort import Fort
from tests.fuzz.target import Target

SIGNATURE = b"\xff" + bytes(7) + b"\x01\x7f"
NULL_GREETING = SIGNATURE + b"\x03\x01" + b"NULL".ljust(20, b"\0") + bytes(32)
CURVE_GREETING = SIGNATURE + b"\x03\x01" + b"CURVE".ljust(20, b"\0") + bytes(32)
PROPERTIES = b"\x05READY\x0bSocket-Type\x00\x00\x00\x06DEALER\x08Identity\x00\x00\x00\x00"
READY = b"\x04" + bytes([len(PROPERTIES)]) + PROPERTIES
COMMANDS = (b"\x04\x00", b"\x04\x01\xff", b"\x04\x03\x02ab", b"\x04\x05\x04PING", b"\x04\x07\x04PING\x00\x01", b"\x04\x05\x04PONG")
"""Commands of ZMTP as they may come after the greeting, most of them broken."""
OLD = (b"\x01\x00", b"\x0c\x00hello world")
"""Frames of ZMTP 1.0."""
GREETED = (NULL_GREETING + READY, *[NULL_GREETING + READY + command for command in COMMANDS])
BEGINNINGS = (b"", b"", b"", SIGNATURE, SIGNATURE + b"\x03", NULL_GREETING, CURVE_GREETING, *GREETED, *OLD)
"""What a connection begins with before it goes wrong."""


def nonsense(rng: random.Random) -> bytes:
    """The bytes of one connection."""
    beginning = rng.choice(BEGINNINGS)
    if beginning and rng.random() < 0.3:
        at = rng.randrange(len(beginning))
        beginning = beginning[:at] + rng.randbytes(1) + beginning[at + 1 :]
    long_frame = b"\x02" + struct.pack(">Q", rng.choice((2**31, 2**63 - 1, 2**64 - 1, 10**9)))
    return beginning + rng.choice((rng.randbytes(rng.randint(1, 200)), long_frame + rng.randbytes(20), b"\x00\x05hello" * 5))


async def connect(endpoint: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """A plain connection to where a system listens."""
    if endpoint.startswith("ipc://"):
        return await asyncio.open_unix_connection(endpoint.removeprefix("ipc://"))
    host, _, port = endpoint.removeprefix("tcp://").rpartition(":")
    return await asyncio.open_connection(host, int(port))


async def one_connection(endpoint: str, rng: random.Random) -> None:
    """Sends nonsense and leaves in one of the ways in which connections end."""
    reader, writer = await connect(endpoint)
    try:
        with contextlib.suppress(OSError):
            await misbehave(reader, writer, rng, rng.randrange(4) if endpoint.startswith("tcp://") else rng.randrange(3))
    finally:
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()


async def misbehave(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, rng: random.Random, way: int) -> None:
    """Sends nonsense; then waits for an answer, says that nothing follows, breaks off, or resets."""
    writer.write(nonsense(rng))
    if way == 0:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(0.05):
                await reader.read(1000)
    elif way == 1:
        writer.write_eof()
        await asyncio.sleep(0)
    elif way == 2:
        writer.transport.abort()
    else:
        writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


async def crowd(endpoint: str, seed: int, count: int) -> None:
    """``count`` connections, fifty at a time."""
    rngs = [random.Random(f"{seed}.{number}") for number in range(50)]

    async def one_after_another(rng: random.Random) -> None:
        for _ in range(count // len(rngs)):
            await one_connection(endpoint, rng)

    async with asyncio.TaskGroup() as group:
        for rng in rngs:
            group.create_task(one_after_another(rng))


async def garbage_harms_nobody(fort: Fort, seed: int, count: int) -> None:
    """Nothing is accepted, nothing grows, everybody else is served, and every connection is closed again."""
    await fort.target.call(Target.add, 1)
    before = await fort.target.call(Target.descriptors)
    seen = await fort.stands_while(partial(crowd, fort.endpoint, seed, count))
    assert seen.callers.keys() == {"caller"}
    async with asyncio.timeout(30):
        while await fort.target.call(Target.descriptors) > before:
            # Each answer comes after one more turn of the other process, which closes what it hears has been closed.
            pass


async def test_connections_of_random_bytes_harm_nobody(fort: Fort) -> None:
    await garbage_harms_nobody(fort, 1, 200)


async def test_connections_of_random_bytes_to_a_sealed_process_harm_nobody(sealed_fort: Fort) -> None:
    await garbage_harms_nobody(sealed_fort, 2, 200)


@pytest.mark.faults
@pytest.mark.timeout(600)
async def test_two_thousand_connections_of_random_bytes_harm_nobody(fort: Fort) -> None:
    await garbage_harms_nobody(fort, 3, 2000)


@pytest.mark.faults
@pytest.mark.timeout(600)
async def test_two_thousand_connections_of_random_bytes_to_a_sealed_process_harm_nobody(sealed_fort: Fort) -> None:
    await garbage_harms_nobody(sealed_fort, 4, 2000)
