"""One line to a system with children: ``start``, ``local`` with a process of its own, and what is left afterwards."""

import asyncio
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import psutil
import pytest

from asyncrl.errors import ActorDied, ConfigError
from asyncrl.runtime import ActorSystem, ProcessDeath
from tests.unit.runtime.conftest import ROOT
from tests.unit.runtime.runtime_actors import Caller, Counter

FORBIDDEN = ("torch", "numpy", "hydra", "omegaconf", "transformers", "vllm")


def children() -> list[int]:
    return [child.pid for child in psutil.Process().children(recursive=True)]


@pytest.fixture
def tmp(folder: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Where temporary folders are made; pytest has made its own before."""
    monkeypatch.setattr(tempfile, "tempdir", folder)
    return folder


async def test_a_local_system_starts_its_supervisor_with_the_first_child(tmp: str) -> None:
    processes = children()
    async with ActorSystem.local() as system:
        near = await system.spawn(Counter, 1, name="near")
        assert await near.call(Counter.add, 1) == 2
        assert (system.endpoint, children(), os.listdir(tmp), system.directory) == ("memory://main", processes, [], None)
        counter = await system.spawn(Counter, name="counter", process="new")
        assert await counter.call(Counter.add, 2) == 2
        assert counter.address.process == "counter"
        assert await counter.call(Counter.pid) != os.getpid()
        # A reference from before goes on, and a child can call back.
        assert await near.call(Counter.add, 1) == 3
        caller = await system.spawn(Caller, name="caller", process="new")
        assert await caller.call(Caller.relay, system.address("near"), 4) == 7
        assert await caller.call(Caller.relay, counter.address, 3) == 5
        assert (await caller.call(Caller.find, "near")).process == "main"
        assert len(children()) == len(processes) + 3
    assert children() == processes
    assert os.listdir(tmp) == []


async def test_a_system_that_is_started_ends_with_all_it_has_begun(tmp: str, tmp_path: Path) -> None:
    processes = children()
    async with ActorSystem.start("boss", log_folder=str(tmp_path), env_allow=["HOME_OF_NOTHING"]) as system:
        ref = await system.spawn(Counter, name="counter", process="child")
        assert ref.address.endpoint.startswith("ipc:///")
        assert await ref.call(Counter.add, 1) == 1
        (folder,) = os.listdir(tmp)
        assert os.stat(f"{tmp}/{folder}").st_mode & 0o777 == 0o700
    assert children() == processes
    assert os.listdir(tmp) == []
    assert {"supervisor.log", "child.log"} <= set(os.listdir(tmp_path))
    with pytest.raises(ConfigError, match="the path of an ipc socket"):
        ActorSystem.start("x" * 100)
    assert children() == processes
    assert os.listdir(tmp) == []


async def test_an_own_supervisor_that_is_killed_takes_its_children_along_and_is_reported() -> None:
    deaths: asyncio.Queue[ProcessDeath] = asyncio.Queue()
    async with ActorSystem.start() as system:
        system.children.on_death = deaths.put_nowait
        ref = await system.spawn(Counter, name="counter", process="new", restarts=3)
        pid = await ref.call(Counter.pid)
        os.kill(psutil.Process(pid).ppid(), signal.SIGKILL)
        death = await deaths.get()
        assert (death.name, death.exit, death.restarting) == ("supervisor", "signal 9 (SIGKILL)", False)
        with pytest.raises(ActorDied, match="its supervisor ended"):
            await ref.call(Counter.add, 1)
        with pytest.raises(ActorDied, match="it has left"):
            await system.spawn(Counter, name="other", process="new")


def test_the_runtime_and_its_children_stand_alone() -> None:
    words = f"import sys, asyncrl.runtime, asyncrl.runtime.process; print([m for m in {FORBIDDEN} if m in sys.modules])"
    shown = subprocess.run([sys.executable, "-c", words], capture_output=True, text=True, check=True, cwd=ROOT, timeout=30)
    assert shown.stdout == "[]\n"
