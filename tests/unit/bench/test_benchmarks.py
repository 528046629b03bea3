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
from asyncrl.bench.algorithms import AlgorithmsWork, algorithms
from asyncrl.bench.modes import ModesWork, modes
from asyncrl.bench.queue import QueueWork, queue
from asyncrl.bench.queue_rows import jagged_fields
from asyncrl.bench.reference import server
from asyncrl.bench.report import Report
from asyncrl.bench.rpc import RpcWork, rpc

RPC = {"latency": "us", "calls_per_second": "calls/s", "fan_out": "us", "tensor_echo": "MB/s"}
PROCESSES = {"spawn": "s", "idle_cpu": "%", "idle_memory": "MB"}
QUEUE = {
    "single_put": "us", "single_get": "us", "in_flight_puts": "puts/s", "jagged_put": "MB/s", "jagged_get": "MB/s", "dense_put": "MB/s",
    "dense_get": "MB/s", "wakeup": "us", "list_keys": "us", "small_rows_put": "rows/s", "small_rows_get": "rows/s", "tag_puts": "puts/s",
    "large_put": "MB/s", "large_get": "MB/s", "large_get_warm": "MB/s", "journal_single_put": "us", "journal_jagged_put": "MB/s",
    "shard_spawn": "s", "shard_idle_cpu": "%", "shard_idle_memory": "MB",
}  # fmt: skip
MODES = {"sync": "s", "colocate_async": "s", "separate_async": "s"} | {
    f"{mode}_{figure}": "versions" for mode in ("colocate_async", "separate_async") for figure in ("staleness", "staleness_max")
}
FIGURES = {
    "rpc": {f"{over}{name}": unit for over in ("", "tcp_") for name, unit in RPC.items()} | PROCESSES,
    "queue": QUEUE,
    "algorithms": {"grpo": "ms", "vanilla_loss": "ms"},
    "modes": MODES,
}
LITTLE_RPC = RpcWork(
    rounds=1, latency_calls=5, in_flight=4, calls_each=2, fan_out=2, fan_outs=2, tensors=1, tensor_bytes=1 << 16, spawns=1,
    idle_seconds=0.2,
)  # fmt: skip
LITTLE_QUEUE = QueueWork(
    rounds=1, calls=10, in_flight=2, rows=4, dense_bytes=1 << 16, large_bytes=1 << 16, large_rounds=1, small_rows=8, listed=16, spawns=1,
    idle_seconds=0.1,
)  # fmt: skip
LITTLE: dict[str, command.Bench] = {
    "rpc": partial(rpc, work=LITTLE_RPC),
    "queue": partial(queue, work=LITTLE_QUEUE),
    "algorithms": partial(algorithms, work=AlgorithmsWork(rounds=1, rows=16, tokens=8, micro_rows=4, copied_bytes=1 << 12)),
    "modes": partial(modes, work=ModesWork(prompts=2, sessions=2, mean=0.02, training=0.01, warm=1, steps=3, seeds=1)),
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
    assert sorted(command.NAMES) == sorted([*LITTLE, "step"])


@pytest.mark.timeout(150)  # twenty processes, on a busy machine
@pytest.mark.usefixtures("little")
def test_all_runs_every_benchmark_and_prints_one_object_a_line(temporary: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["all", "--json"]) == 0
    printed = capsys.readouterr()
    reports = [json.loads(line) for line in printed.out.splitlines()]
    assert [report["bench"] for report in reports] == list(FIGURES)
    for report in reports:
        assert set(report) == {"bench", "figures"}
        assert {name: figure["unit"] for name, figure in report["figures"].items()} == FIGURES[report["bench"]]
        for figure in report["figures"].values():
            assert set(figure) == {"value", "unit", "reference", "ratio"}
            assert figure["value"] > 0
            assert figure["ratio"] == pytest.approx(figure["value"] / figure["reference"])
    assert [line.split(":")[0] for line in printed.err.splitlines()] == [f"asyncrl bench {name}" for name in FIGURES]
    assert not psutil.Process().children(recursive=True)
    # torch makes a folder for compiled code as soon as a part of it is imported.
    assert [name for name in os.listdir(temporary) if not name.startswith("torchinductor")] == []


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
    assert "'rpc', 'queue', 'algorithms', 'step', 'modes', 'all'" in capsys.readouterr().err


def test_a_reference_that_cannot_start_ends_the_benchmark() -> None:
    with pytest.raises(RuntimeError, match="'small' ended at its start, exit code 1"), server("small", "ipc:///nowhere/at/all"):
        pass


def test_the_jagged_batch_has_the_rows_of_the_peer_that_it_is_compared_with() -> None:
    fields = jagged_fields(256)
    lengths = [column.lengths().tolist() for column in fields.values()]
    assert all(each == lengths[0] for each in lengths)
    assert (len(lengths[0]), min(lengths[0]) >= 128, max(lengths[0]) <= 2048) == (256, True, True)
    assert sum(column.nbytes for column in fields.values()) == sum(lengths[0]) * (3 * 8 + 3 * 4)


def test_the_benchmarks_and_their_processes_do_without_torch() -> None:
    code = "import sys, asyncrl.bench.command, asyncrl.bench.echo, asyncrl.bench.sleeping_rollout; print('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "False\n"
