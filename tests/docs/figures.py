"""The tables of measured figures: ``python -m tests.docs.figures FILE.json`` writes what a benchmark printed into its page.

FILE is the output of ``asyncrl bench rpc --json --peer-python PATH``, or of ``asyncrl bench queue --json``.
"""

import sys
from collections.abc import Callable
from pathlib import Path

import msgspec

from asyncrl.bench.report import Report
from tests.docs.pages import DOCS


def milliseconds(microseconds: float) -> str:
    return f"{microseconds / 1e3:.2f} ms"


def rate(megabytes: float) -> str:
    return f"{megabytes / 1e3:.2f} GB/s"


def a_second(number: float) -> str:
    return f"{number:,.0f} /s"


def rows_a_second(number: float) -> str:
    return f"{number:,.0f} rows/s"


ROWS: dict[str, tuple[str, Callable[[float], str]]] = {
    "latency": ("a call, p50", lambda microseconds: f"{microseconds / 1e3:.2f} ms"),
    "calls_per_second": ("calls/s, 256 in flight", lambda rate: f"{rate:,.0f}"),
    "fan_out": ("fan-out to 16, p50", lambda microseconds: f"{microseconds / 1e3:.2f} ms"),
    "tensor_echo": ("echo of 16 MiB", lambda megabytes: f"{megabytes / 1e3:.2f} GB/s"),
}
"""The figures of ``rpc``, what they are called, and how they are written."""
PLAIN, ASYNCIO = "synchronous pyzmq", "zmq.asyncio"
REFERENCES = {"latency": PLAIN, "calls_per_second": ASYNCIO, "fan_out": ASYNCIO, "tensor_echo": PLAIN}
"""What the reference of each figure is."""
PEERS = {"xoscar": "xoscar", "Ray": "ray", "dask": "dask"}
QUEUE: dict[str, tuple[str, str, Callable[[float], str], str]] = {
    "single_put": ("put of one row of 1 KB, p50", "an empty call", milliseconds, "6.40 ms"),
    "single_get": ("get of one row of 1 KB, p50", "an empty call", milliseconds, "4.71 ms"),
    "in_flight_puts": ("such puts, 32 in flight", "empty calls", a_second, "277 /s"),
    "tag_puts": ("puts of one tag, one after another", "empty calls", a_second, "364 /s"),
    "wakeup": ("from a put to its watcher, p50", "promised", milliseconds, "polls"),
    "list_keys": ("list of 8,192 keys", "promised", milliseconds, "31.6 ms"),
    "small_rows_put": ("put of 4,096 short rows", "promised", rows_a_second, "4,005 rows/s"),
    "small_rows_get": ("get of 4,096 short rows", "promised", rows_a_second, "6,178 rows/s"),
    "jagged_put": ("put of 256 jagged rows, 6 fields", "packed, over tcp", rate, "0.05 GB/s"),
    "jagged_get": ("get of 256 jagged rows, 6 fields", "packed, over tcp", rate, "0.09 GB/s"),
    "dense_put": ("put of 64 MiB", "packed, over tcp", rate, "0.82 GB/s"),
    "dense_get": ("get of 64 MiB", "packed, over tcp", rate, "0.48 GB/s"),
    "large_put": ("put of 512 MiB", "copy to fresh memory", rate, "0.79 GB/s"),
    "large_get": ("get of 512 MiB", "copy to fresh memory", rate, "0.49 GB/s"),
    "large_get_warm": ("get of 512 MiB, after another", "copy to used memory", rate, "-"),
    "journal_single_put": ("one row, `journal=interval`", "without a journal", milliseconds, "-"),
    "journal_jagged_put": ("256 jagged rows, `journal=interval`", "without a journal", rate, "-"),
    "shard_spawn": ("a shard is up after", "promised", lambda seconds: f"{seconds:.2f} s", "-"),
    "shard_idle_cpu": ("an idle shard, of a core", "promised", lambda percent: f"{percent:.2f} %", "-"),
    "shard_idle_memory": ("memory of an idle shard", "promised", lambda megabytes: f"{megabytes:.0f} MB", "-"),
}
"""The figures of ``queue``: title, what the reference is, how both are written, and what the TransferQueue library (0.1.11, one
storage unit, two cores) was measured at."""
BEGIN, END = "<!-- figures: {} -->", "<!-- figures: end -->"


def rpc_table(report: Report) -> str:
    """Our figures beside each peer's, over ipc unless it says tcp; "-" for what the benchmark does not measure."""
    heads = ["", "ours, ipc", "ours, tcp", PLAIN, ASYNCIO, *PEERS]
    lines = [f"| {' | '.join(heads)} |", f"|---|{'---:|' * (len(heads) - 1)}"]
    for name, (title, words) in ROWS.items():
        figure, over_tcp = report.figures[name], report.figures[f"tcp_{name}"]
        cells = [title, words(figure.value), words(over_tcp.value)]
        cells += [words(figure.reference) if REFERENCES[name] == reference else "-" for reference in (PLAIN, ASYNCIO)]
        found = [report.figures.get(f"{name}_vs_{peer}") for peer in PEERS.values()]
        cells += ["-" if each is None else words(each.reference) for each in found]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def queue_table(report: Report) -> str:
    """Our figures, their reference of the same run, and what the library was measured at."""
    lines = ["|  | asyncrl | reference | | ratio | the library |", "|---|---:|---:|---|---:|---:|"]
    for name, (title, reference, words, library) in QUEUE.items():
        figure = report.figures[name]
        cells = [title, words(figure.value), words(figure.reference), reference, f"{figure.ratio:.2f}", library]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


TABLES: dict[str, Callable[[Report], str]] = {"rpc": rpc_table, "queue": queue_table}


def replaced(page: str, table: str, name: str) -> str:
    """A page with the table between the markers of its benchmark."""
    begin = BEGIN.format(name)
    before, found, rest = page.partition(begin)
    assert found
    assert END in rest
    return f"{before}{begin}\n{table}\n{END}{rest.partition(END)[2]}"


if __name__ == "__main__":
    measured = msgspec.json.decode(Path(sys.argv[1]).read_bytes(), type=Report)
    benchmarks = DOCS / "benchmarks.md"
    table = TABLES[measured.bench](measured)
    benchmarks.write_text(replaced(benchmarks.read_text(encoding="utf-8"), table, measured.bench), encoding="utf-8")
