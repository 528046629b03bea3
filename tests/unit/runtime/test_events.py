"""Event files: what is written, what survives, what is kept."""

import contextlib
import logging
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

import msgpack  # type: ignore[import-untyped]
import msgspec
import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

from asyncrl.observe.events import event_files, read_events, read_run
from asyncrl.runtime import EventWriter, RealHost, events
from asyncrl.runtime.actor import CURRENT_CALL
from asyncrl.runtime.records import Called, Died, EndpointStats, Spanned, Started, Stats, Summary
from tests.unit.runtime.conftest import ROOT


def calls(path: Path) -> list[float]:
    """The times of the calls in a file."""
    return [event.record.seconds for event in read_events(path) if isinstance(event.record, Called)]


@contextlib.contextmanager
def writer(path: Path, host: RealHost | None = None, limit: int = 1 << 20) -> Iterator[EventWriter]:
    with EventWriter(str(path), host or RealHost(), process="agent-0", generation=2, attempt="a1", limit=limit) as made:
        yield made


def test_a_file_says_whose_it_is_and_gives_every_record_its_unix_time(tmp_path: Path) -> None:
    class Clocks(RealHost):
        def clock(self) -> float:
            return 50.0

        def wall_time(self) -> float:
            return 1_700_000_000.0

    path = tmp_path / "agent-0-2.msgpack"
    with writer(path, Clocks()) as opened:
        opened.call(53.5, "counter.add", "rank0", 0.25, "rank0.0-1", "")
        opened.call(54.0, "counter.add", "rank0", 0.5, "", "RuntimeError")
    found = list(read_events(path))
    assert [(event.time, event.process, event.generation) for event in found] == [
        (1_700_000_000.0, "agent-0", 2), (1_700_000_003.5, "agent-0", 2), (1_700_000_004.0, "agent-0", 2),
    ]  # fmt: skip
    start = found[0].record
    assert isinstance(start, Started)
    assert (start.pid, start.attempt) == (os.getpid(), "a1")
    assert [event.record for event in found[1:]] == [
        Called(53.5, "counter.add", "rank0", 0.25, "rank0.0-1", ""), Called(54.0, "counter.add", "rank0", 0.5, "", "RuntimeError"),
    ]  # fmt: skip


def test_the_file_is_plain_messagepack_and_leaves_defaults_out(tmp_path: Path) -> None:
    path = tmp_path / "a.msgpack"
    with writer(path) as opened:
        opened.call(1.0, "counter.add", "rank0", 0.5, "", "")
    with open(path, "rb") as file:
        values = list(msgpack.Unpacker(file))
    assert values[1] == {"kind": "call", "at": 1.0, "endpoint": "counter.add", "caller": "rank0", "seconds": 0.5}


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(cut=st.integers(0, 2000), tail=st.binary(max_size=6))
def test_a_torn_tail_costs_the_last_record_and_nothing_before_it(tmp_path: Path, cut: int, tail: bytes) -> None:
    path = tmp_path / "whole.msgpack"
    if not path.exists():
        with writer(path) as opened:
            for number in range(20):
                opened.call(float(number), "counter.add", "rank0", float(number), "rank0.0-1", "")
    whole = path.read_bytes()
    cut = min(cut, len(whole))
    torn = tmp_path / "torn.msgpack"
    torn.write_bytes(whole[:cut])
    ends = list(record_ends(whole))
    kept = [number for number, end in enumerate(ends[1:]) if end <= cut]
    assert calls(torn) == [float(number) for number in kept]
    # Garbage behind it, as after a lost block, adds nothing but what happens to be a record.
    torn.write_bytes(whole[:cut] + b"\xc1" + tail)
    assert calls(torn) == [float(number) for number in kept]


def record_ends(data: bytes) -> Iterator[int]:
    unpacker = msgpack.Unpacker()
    unpacker.feed(data)
    for _ in unpacker:
        yield unpacker.tell()


def test_kinds_of_a_newer_version_are_left_out_and_zeros_end_the_file(tmp_path: Path) -> None:
    path = tmp_path / "a.msgpack"
    with writer(path) as opened:
        opened.call(1.0, "a.b", "x", 0.5, "", "")
    with open(path, "ab") as file:
        file.write(msgspec.msgpack.encode({"kind": "of tomorrow", "at": 2.0, "more": [1]}))
        file.write(msgspec.msgpack.encode(Called(3.0, "a.b", "x", 0.75)))
        file.write(bytes(100))
        file.write(msgspec.msgpack.encode(Called(4.0, "a.b", "x", 1.0)))
    assert calls(path) == [0.5, 0.75]


def test_a_file_that_is_full_is_put_aside_and_the_newest_two_are_kept(tmp_path: Path) -> None:
    path = tmp_path / "agent-0-2.msgpack"
    with writer(path, limit=2000) as opened:
        for number in range(200):
            opened.call(1.0, "counter.add", "rank0", float(number), "rank0.0-1", "")
            opened.flush()
    files = event_files(tmp_path)
    assert [file.name for file in files] == ["agent-0-2.old.msgpack", "agent-0-2.msgpack"]
    assert all(file.stat().st_size <= 2000 for file in files)
    assert all(isinstance(next(iter(read_events(file))).record, Started) for file in files)
    kept = [seconds for file in files for seconds in calls(file)]
    assert len(kept) > 20
    assert kept == [float(number) for number in range(200)][-len(kept) :]


def test_the_file_of_an_earlier_life_is_put_aside_and_not_appended_to(tmp_path: Path) -> None:
    path = tmp_path / "agent-0-2.msgpack"
    for life in range(3):
        with writer(path) as opened:
            opened.call(1.0, "a.b", "x", float(life), "", "")
    assert [calls(file) for file in event_files(tmp_path)] == [[1.0], [2.0]]


def test_the_records_of_a_run_come_in_order_of_time(tmp_path: Path) -> None:
    for process, offsets in (("a", (0.0, 2.0)), ("b", (1.0, 3.0))):
        with EventWriter(str(tmp_path / f"{process}-0.msgpack"), RealHost(), process=process) as opened:
            for offset in offsets:
                opened.write(Died(opened.now() + 100.0 + offset, process, "test"))
    assert [event.process for event in read_run(tmp_path) if isinstance(event.record, Died)] == ["a", "b", "a", "b"]


def test_a_span_carries_its_length_its_attributes_its_trace_and_its_failure(tmp_path: Path) -> None:
    class Serving:
        caller = caller_role = "rank0"
        trace = "rank0.0-7"
        expires: float | None = None
        key: tuple[str, int, int] | None = None

        def progress(self) -> None:
            """Nobody watches."""

    path = tmp_path / "a.msgpack"
    with writer(path) as opened:
        token = CURRENT_CALL.set(Serving())
        with opened.span("generate", step=3) as attributes:
            attributes["tokens"] = 128
        CURRENT_CALL.reset(token)
        with pytest.raises(KeyError), opened.span("load"):
            raise KeyError("x")
    generate, load = [event.record for event in read_events(path) if isinstance(event.record, Spanned)]
    assert (generate.name, generate.trace, generate.attributes) == ("generate", "rank0.0-7", {"step": 3, "tokens": 128})
    assert 0 <= generate.seconds < 60
    assert (load.name, load.trace, load.attributes) == ("load", "", {"failure": "KeyError"})


def test_the_counters_are_written_while_there_is_traffic_and_at_the_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events, "SUMMARY_SECONDS", 0.0)
    path = tmp_path / "a.msgpack"
    asked: list[int] = []

    def stats() -> Stats:
        asked.append(1)
        return Stats(served=[EndpointStats("a.b", len(asked))], queued={"a": 2})

    with writer(path) as opened:
        opened.summary = stats
        opened.flush()
        assert not asked
        opened.call(1.0, "a.b", "x", 0.5, "", "")
        opened.flush()
        opened.flush()
        assert len(asked) == 1
        opened.flush()
        assert len(asked) == 1
    summaries = [event.record.stats for event in read_events(path) if isinstance(event.record, Summary)]
    assert summaries == [Stats(served=[EndpointStats("a.b", number)], queued={"a": 2}) for number in (1, 2)]


def test_a_writer_that_has_nothing_to_write_is_not_woken(tmp_path: Path) -> None:
    class Counting(RealHost):
        """Counts the waits that have an end."""

        def __init__(self) -> None:
            self.timed: list[float] = []

        def flag(self) -> threading.Event:
            seen = self.timed

            class Flag(threading.Event):
                def wait(self, timeout: float | None = None) -> bool:
                    if timeout is not None:
                        seen.append(timeout)
                    return super().wait(timeout)

            return Flag()

    host = Counting()
    with writer(tmp_path / "a.msgpack", host) as opened:
        opened.write(Died(1.0, "x", "y"), hurry=True)
        opened.flush()
        before = len(host.timed)
        assert not threading.Event().wait(0.2)
        assert len(host.timed) == before


class Tap:
    """A file that takes nothing until it is opened, or never."""

    def __init__(self, file: BinaryIO, error: OSError | None = None) -> None:
        self._file, self._error = file, error
        self.open = threading.Event()
        self.reached = threading.Event()

    def write(self, data: bytes) -> int:
        self.reached.set()
        if self._error is not None:
            raise self._error
        assert self.open.wait(30)
        return self._file.write(data)

    def flush(self) -> None:
        self._file.flush()

    def close(self) -> None:
        self._file.close()


class Disk(RealHost):
    """Its files are taps; what starts a file goes through."""

    def __init__(self, error: OSError | None = None) -> None:
        self._error = error
        self.tap: Tap | None = None

    def open_append(self, path: str) -> BinaryIO:
        self.tap = Tap(super().open_append(path))
        self.tap.open.set()
        return self.tap  # type: ignore[return-value]

    def stop(self) -> None:
        """From now on nothing is taken."""
        assert self.tap is not None
        self.tap.open.clear()
        self.tap.reached.clear()
        self.tap._error = self._error


def test_a_disk_that_hangs_stops_nobody_and_what_it_does_not_take_is_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events, "MOST_WAITING", 10)
    monkeypatch.setattr(events, "PATIENCE", 0.05)
    disk = Disk()
    with writer(tmp_path / "a.msgpack", disk) as opened:
        disk.stop()
        assert disk.tap is not None
        opened.call(0.0, "a.b", "x", 0.0, "", "")
        opened.flush()
        assert disk.tap.reached.wait(30)
        for number in range(1, 15):
            opened.call(0.0, "a.b", "x", float(number), "", "")
        assert opened.dropped == 4
        disk.tap.open.set()
    assert calls(tmp_path / "a.msgpack") == [float(number) for number in range(11)]


def test_a_full_disk_is_said_once_and_ends_the_file_not_the_process(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    disk = Disk(OSError(28, "No space left on device"))
    with writer(tmp_path / "a.msgpack", disk) as opened:
        disk.stop()
        for number in range(3):
            opened.call(0.0, "a.b", "x", float(number), "", "")
            opened.flush()
        assert opened.dropped == 3
    assert [line for line in caplog.messages if "takes no events any more: [Errno 28] No space left on device" in line]
    assert len(caplog.messages) == 1


KILLED = """
import itertools, sys
from asyncrl.runtime import EventWriter, RealHost
events = EventWriter(sys.argv[1], RealHost(), process="victim")
for number in itertools.count():
    events.call(0.0, "a.b", "x", float(number), "", "")
    if number % 1000 == 0:
        events.flush()
        print(number, flush=True)
"""


def test_a_killed_process_leaves_a_file_that_can_be_read_to_its_last_whole_record(tmp_path: Path) -> None:
    path = tmp_path / "victim-0.msgpack"
    process = subprocess.Popen([sys.executable, "-c", KILLED, str(path)], stdout=subprocess.PIPE, cwd=ROOT)
    assert process.stdout is not None
    said = [int(process.stdout.readline()) for _ in range(4)]
    process.send_signal(signal.SIGKILL)
    process.wait()
    process.stdout.close()
    found = calls(path)
    assert found == [float(number) for number in range(len(found))]
    assert len(found) > said[-1]
