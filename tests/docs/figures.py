"""The tables of measured figures: ``python -m tests.docs.figures rpc.json`` writes what a benchmark printed into its page.

``rpc.json`` is the output of ``asyncrl bench rpc --json --peer-python PATH``.
"""

import sys
from collections.abc import Callable
from pathlib import Path

import msgspec

from asyncrl.bench.report import Report
from tests.docs.pages import DOCS

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
BEGIN, END = "<!-- figures: rpc -->", "<!-- figures: end -->"


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


def replaced(page: str, table: str) -> str:
    """A page with the table between its markers."""
    before, found, rest = page.partition(BEGIN)
    assert found
    assert END in rest
    return f"{before}{BEGIN}\n{table}\n{END}{rest.partition(END)[2]}"


if __name__ == "__main__":
    measured = msgspec.json.decode(Path(sys.argv[1]).read_bytes(), type=Report)
    benchmarks = DOCS / "benchmarks.md"
    benchmarks.write_text(replaced(benchmarks.read_text(encoding="utf-8"), rpc_table(measured)), encoding="utf-8")
