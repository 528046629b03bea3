"""Whose end a supervisor takes for the end of its client: of the process, not of the thread that started it."""

import asyncio
import os
import signal
import socket
import threading
from pathlib import Path

import psutil

from asyncrl.runtime import ActorSystem, ProcessDeath, RealHost, SupervisorClient
from asyncrl.runtime.supervisor import PARENT_SIGNAL, Supervisor
from asyncrl.runtime.supervisor_messages import Settings
from tests.unit.runtime.runtime_actors import Counter

GONE = 15.0
"""Seconds after which no process may be left: three times what is promised."""


def started_by_a_thread(folder: str) -> SupervisorClient:
    """A client whose supervisor was started by a thread that has ended."""
    os.mkdir(folder, 0o700)
    made: list[SupervisorClient] = []

    def start() -> None:
        made.append(
            SupervisorClient.start(host=RealHost(), folder=folder, log_folder=f"{folder}-logs", attempt="", env_allow=["PYTHONPATH"])
        )

    thread = threading.Thread(target=start)
    thread.start()
    thread.join()
    return made[0]


async def test_children_outlive_the_thread_that_started_their_supervisor_and_end_with_a_supervisor_that_is_told_to(tmp_path: Path) -> None:
    folder = str(tmp_path / "s")
    client = started_by_a_thread(folder)
    deaths: asyncio.Queue[ProcessDeath] = asyncio.Queue()
    client.attach_loop(deaths.put_nowait)
    async with ActorSystem.bind("main", f"ipc://{folder}/main.sock", token=client.token) as system:
        system.attach(client)
        first = await system.spawn(Counter, 1, name="first", process="child-0")
        # The kernel sends the same for each thread that takes over from another.
        os.kill(client.pid, PARENT_SIGNAL)
        second = await system.spawn(Counter, 2, name="second", process="child-1")
        assert [await ref.call(Counter.add, 1) for ref in (first, second)] == [2, 3]
        pids = [client.pid_of(name) for name in ("child-0", "child-1")]
        os.kill(client.pid, signal.SIGTERM)
        async with asyncio.timeout(GONE):
            death = await deaths.get()
        assert (death.name, death.exit) == ("supervisor", "exit code 0")
        assert not [pid for pid in pids if psutil.pid_exists(pid)]
    await client.stop()


def test_a_supervisor_whose_parent_has_gone_leaves_although_its_lifeline_is_held(tmp_path: Path) -> None:
    folder = tmp_path / "s"
    folder.mkdir()
    wakeup, sender = os.pipe()
    held, far = socket.socketpair()
    os.write(sender, bytes([PARENT_SIGNAL]))
    nobody = 0
    Supervisor(Settings(nobody, str(folder), str(tmp_path), []), far).run(wakeup)
    assert not folder.exists()
    held.close()
    far.close()
    os.close(wakeup)
    os.close(sender)
