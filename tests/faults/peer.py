"""A process with an actor system that nobody supervises: ``python -m tests.faults.peer PAPERS``.

Prints the address of its first actor when it serves; leaves when its standard input ends.
"""

import asyncio
import os
import sys

import msgspec

from asyncrl.runtime import RealHost
from asyncrl.runtime.host import run_main
from asyncrl.runtime.process import actor_class
from tests.faults.systems import bind

ACTORS = {name.lower(): f"tests.faults.fault_actors:{name}" for name in ("Worker", "Ledger", "Writer")}


class Papers(msgspec.Struct):
    """Who the process is to be."""

    name: str
    endpoint: str
    generation: int = 0
    token: bytes = b"t" * 32
    attempt: str = "a1"
    job_key: bytes = b""
    actors: dict[str, str] = msgspec.field(default_factory=lambda: dict(ACTORS))


async def serve(papers: Papers) -> None:
    """Hosts the actors until the parent lets go."""
    gone = asyncio.Event()

    def read() -> None:
        if not os.read(0, 4096):
            asyncio.get_running_loop().remove_reader(0)
            gone.set()

    asyncio.get_running_loop().add_reader(0, read)
    system = bind(
        papers.name,
        papers.endpoint,
        RealHost(),
        attempt=papers.attempt,
        generation=papers.generation,
        token=papers.token,
        job_key=papers.job_key,
    )
    async with system:
        for name, path in papers.actors.items():
            await system.spawn(actor_class(path), name=name)
        print(msgspec.json.encode(system.address(next(iter(papers.actors)))).decode(), flush=True)
        await gone.wait()


if __name__ == "__main__":
    decoded = msgspec.json.decode(sys.argv[1], type=Papers)
    run_main(lambda: serve(decoded))
