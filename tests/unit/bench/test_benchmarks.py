"""Every benchmark runs, with little work. How fast anything is decides nothing here."""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from functools import partial

import psutil
import pytest

from asyncrl.bench import command
from asyncrl.bench.queue import QueueWork, jagged_fields, queue
from asyncrl.bench.reference import server
from asyncrl.bench.report import Report
from asyncrl.bench.rpc import RpcWork, rpc

FIGURES = {
    "rpc": {"latency": "us", "calls_per_second": "calls/s", "tensor_echo": "MB/s"},
    "queue": {"single_put": "us", "single_get": "us", "jagged_put": "MB/s", "jagged_get": "MB/s"},
}
LITTLE: dict[str, command.Bench] = {
    "rpc": partial(rpc, work=RpcWork(rounds=1, latency_calls=5, in_flight=4, calls_each=2, tensors=1, tensor_bytes=1 << 16)),
    "queue": partial(queue, work=QueueWork(rounds=1, calls=5, rows=4)),
}


@pytest.fixture
def little(monkeypatch: pytest.MonkeyPatch) -> None:
    """The command, with little work."""
    monkeypatch.setattr(command, "NAMES", LITTLE)


@pytest.fixture
def temporary(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A temporary folder of this test alone; its path is short enough for sockets."""
    with tempfile.TemporaryDirectory() as folder:
        monkeypatch.setattr(tempfile, "tempdir", folder)
        yield folder


def test_every_benchmark_is_tried_here_but_the_one_that_launches_whole_runs() -> None:
    assert list(LITTLE) == list(FIGURES)
    assert list(command.NAMES) == [*LITTLE, "step"]


@pytest.mark.usefixtures("little")
def test_all_runs_every_benchmark_and_prints_one_object_a_line(temporary: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["all", "--json"]) == 0
    printed = capsys.readouterr()
    reports = [json.loads(line) for line in printed.out.splitlines()]
    assert [report["bench"] for report in reports] == ["rpc", "queue"]
    for report in reports:
        assert set(report) == {"bench", "figures"}
        assert {name: figure["unit"] for name, figure in report["figures"].items()} == FIGURES[report["bench"]]
        for figure in report["figures"].values():
            assert set(figure) == {"value", "unit", "reference", "ratio"}
            assert figure["value"] > 0
            assert figure["ratio"] == pytest.approx(figure["value"] / figure["reference"])
    assert [line.split(":")[0] for line in printed.err.splitlines()] == ["asyncrl bench rpc", "asyncrl bench queue"]
    assert not psutil.Process().children(recursive=True)
    assert os.listdir(temporary) == []


def test_one_benchmark_prints_a_table(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    async def found(progress: object) -> Report:
        return Report("rpc", {})

    monkeypatch.setattr(command, "NAMES", {"rpc": found})
    assert command.main(["rpc"]) == 0
    assert capsys.readouterr().out.split() == ["rpc", "ours", "reference", "unit", "ratio"]


def test_an_unknown_name_is_refused_with_the_known_ones(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        command.main(["speed"])
    assert ended.value.code == 2
    assert "'rpc', 'queue', 'step', 'all'" in capsys.readouterr().err


def test_a_reference_that_cannot_start_ends_the_benchmark() -> None:
    with pytest.raises(RuntimeError, match="'small' ended at its start, exit code 1"), server("small", "ipc:///nowhere/at/all"):
        pass


def test_the_jagged_batch_has_the_rows_of_the_peer_that_it_is_compared_with() -> None:
    fields = jagged_fields(256)
    lengths = [column.lengths().tolist() for column in fields.values()]
    assert all(each == lengths[0] for each in lengths)
    assert (len(lengths[0]), min(lengths[0]) >= 128, max(lengths[0]) <= 2048) == (256, True, True)
    assert sum(column.nbytes for column in fields.values()) == sum(lengths[0]) * (3 * 8 + 3 * 4)


def test_the_benchmarks_and_their_echo_process_do_without_torch() -> None:
    code = "import sys, asyncrl.bench.command, asyncrl.bench.echo; print('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "False\n"
