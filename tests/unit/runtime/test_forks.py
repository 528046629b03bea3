"""A forked copy of a running process ends where it comes back to its parent's event loop, whichever way it comes there."""

import asyncio
import os
import subprocess
import sys
from pathlib import Path

from asyncrl.runtime import Actor, ActorSystem, endpoint
from asyncrl.runtime.forks import FORKED

ROOT = str(Path(__file__).parents[3])
WAYS = ("exits", "fails", "goes on", "answers")


class Held(Actor):
    """Has a call under way when its process is copied."""

    def __init__(self) -> None:
        self.held, self.go = asyncio.Event(), asyncio.Event()

    @endpoint
    async def hold(self) -> str:
        self.held.set()
        await self.go.wait()
        return "answered"


async def copy(way: str, held: Held) -> None:
    """What a copy does."""
    if way == "exits":
        sys.exit(0)
    if way == "fails":
        raise ValueError("the copy fails")
    if way == "answers":
        held.go.set()
    await asyncio.Event().wait()


async def program(folder: str) -> None:
    """Copies this process during a call over ipc, once for each way; tells how the copies end and what becomes of the call."""
    async with ActorSystem.bind("callee", f"ipc://{folder}/callee.sock") as callee:
        await callee.spawn(Held, name="held")
        held = callee.instance("held", Held)
        async with ActorSystem.bind("caller", f"ipc://{folder}/caller.sock") as caller:
            call = asyncio.ensure_future(caller.ref(callee.address("held"), Held).call(Held.hold))
            await held.held.wait()
            for way in WAYS:
                pid = os.fork()
                if pid == 0:
                    await copy(way, held)
                # Threads can still wake this loop, whatever the copy closed.
                status = (await asyncio.to_thread(os.waitpid, pid, 0))[1]
                print(way, os.waitstatus_to_exitcode(status), flush=True)
            held.go.set()
            print(await call)


def test_a_copy_that_comes_back_to_its_parents_loop_ends_and_its_parent_goes_on(tmp_path: Path) -> None:
    code = "import asyncio, sys; from tests.unit.runtime import test_forks; asyncio.run(test_forks.program(sys.argv[1]))"
    os.chmod(tmp_path, 0o700)
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=30,
        env=os.environ | {"PYTHONPATH": ROOT},
        cwd=ROOT,
        check=False,
    )
    assert done.stdout.splitlines() == [*(f"{way} 1" for way in WAYS), "answered"], done.stderr
    assert done.stderr.count(FORKED) == len(WAYS)
    assert done.returncode == 0
