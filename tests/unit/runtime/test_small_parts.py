"""Waits, rendezvous, security, the control stream, the host."""

import asyncio
import logging
import os
import stat
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest
from hypothesis import given, strategies as st

from asyncrl.errors import ConfigError, WireError
from asyncrl.runtime import MemoryRendezvous, RealHost, WaitRegistry, make_token, private_folder
from asyncrl.runtime.host import describe_exit, read_sealed, remove_folder, sealed_bytes, tail_of
from asyncrl.runtime.messages import SCHEMA, schema_hash
from asyncrl.runtime.security import ipc_endpoint
from asyncrl.runtime.supervisor_messages import FrameReader, Stop, framed
from tests.unit.runtime.conftest import ROOT


class Clock(RealHost):
    """A host whose clock is set by hand."""

    def __init__(self) -> None:
        self.now = 100.0

    def clock(self) -> float:
        return self.now


async def test_waits_are_listed_oldest_first_and_leave_with_their_block() -> None:
    clock = Clock()
    waits = WaitRegistry(clock)
    with waits.waiting("a", "first"):
        clock.now = 103.0
        with waits.waiting("b", "second"):
            assert [(w.who, w.what, w.since) for w in waits.snapshot()] == [("a", "first", 100.0), ("b", "second", 103.0)]
        assert [w.who for w in waits.snapshot()] == ["a"]
    assert waits.snapshot() == []
    waits.close()


async def test_a_stalled_wait_is_logged_once_with_its_name(caplog: pytest.LogCaptureFixture) -> None:
    clock = Clock()
    waits = WaitRegistry(clock, stall=0.01)
    caplog.set_level(logging.WARNING)
    with waits.waiting("shard-0", "QueueShard.put"):
        clock.now = 142.0
        await asyncio.sleep(0.05)
    waits.close()
    assert caplog.messages == ["waiting 42 s for shard-0: QueueShard.put"]


async def test_rendezvous_wakes_those_who_wait() -> None:
    rendezvous = MemoryRendezvous()
    waiting = [asyncio.ensure_future(rendezvous.wait("k")) for _ in range(2)]
    await asyncio.sleep(0)
    assert await rendezvous.get("k") is None
    await rendezvous.set("k", b"v")
    assert [await each for each in waiting] == [b"v", b"v"]
    assert (await rendezvous.get("k"), await rendezvous.wait("k")) == (b"v", b"v")


def test_private_folders_are_private_and_short() -> None:
    path = private_folder()
    assert stat.S_IMODE(os.stat(path).st_mode) == 0o700
    assert len(path) < 60
    remove_folder(path)
    remove_folder(path)
    assert len(make_token(RealHost())) == 32
    assert make_token(RealHost()) != make_token(RealHost())


def test_an_ipc_path_that_the_kernel_would_cut_is_refused() -> None:
    assert ipc_endpoint("/tmp/x", "n") == "ipc:///tmp/x/n.sock"
    assert len(ipc_endpoint("/" + "a" * 99, "x")) == len("ipc://") + 107
    with pytest.raises(ConfigError, match="at most 107 bytes"):
        ipc_endpoint("/" + "a" * 99, "xx")


@given(st.lists(st.floats(0, 10), max_size=5), st.integers(1, 7))
def test_the_control_stream_is_cut_back_into_its_messages(graces: list[float], step: int) -> None:
    stream = b"".join(framed(Stop(grace)) for grace in graces)
    reader = FrameReader()
    found = [frame for at in range(0, len(stream), step) for frame in reader.feed(stream[at : at + step])]
    assert [msgspec.msgpack.decode(frame, type=Stop).grace for frame in found] == graces


def test_an_impossible_length_on_the_control_stream_is_refused() -> None:
    with pytest.raises(WireError, match="control message"):
        FrameReader().feed(b"\xff\xff\xff\xff")


def test_exits_are_told_in_words(tmp_path: Path) -> None:
    assert [describe_exit(code) for code in (0, 3, -9, -15)] == ["exit code 0", "exit code 3", "signal 9 (SIGKILL)", "signal 15 (SIGTERM)"]
    path = tmp_path / "log"
    path.write_text("\n".join(str(n) for n in range(100_000)))
    assert tail_of(str(path), lines=2) == ["99998", "99999"]
    assert tail_of(str(tmp_path / "absent")) == []
    assert read_sealed(sealed_bytes(b"x" * 100_000)) == b"x" * 100_000


def test_the_schema_hash_is_stable_within_a_build() -> None:
    assert schema_hash() == SCHEMA
    assert len(SCHEMA) == 16


def test_the_runtime_stands_alone() -> None:
    heavy = ("torch", "numpy", "hydra", "omegaconf", "transformers", "asyncrl.config")
    code = f"import sys, asyncrl.runtime, asyncrl.runtime.process; print([m for m in {heavy!r} if m in sys.modules])"
    shown = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert shown.stdout.strip() == "[]"
