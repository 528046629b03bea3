"""The table of the benchmark's figures is made of what it prints, and stands in its page."""

import msgspec

from asyncrl.bench.report import Figure, Report
from asyncrl.bench.rpc import PEERS as MEASURED
from tests.docs.figures import PEERS, QUEUE, queue_table, replaced, rpc_table
from tests.docs.pages import DOCS


def of(value: float, unit: str, reference: float) -> Figure:
    return Figure.of(value, unit, reference)


REPORT = Report(
    "rpc",
    {
        "latency": of(210.0, "us", 140.0),
        "calls_per_second": of(21_500.0, "calls/s", 9_000.0),
        "fan_out": of(1_900.0, "us", 4_100.0),
        "tensor_echo": of(3_400.0, "MB/s", 2_100.0),
        "tcp_latency": of(250.0, "us", 160.0),
        "tcp_calls_per_second": of(20_000.0, "calls/s", 8_500.0),
        "tcp_fan_out": of(2_000.0, "us", 4_300.0),
        "tcp_tensor_echo": of(1_500.0, "MB/s", 1_600.0),
        "latency_vs_ray": of(210.0, "us", 2_400.0),
        "tensor_echo_vs_xoscar": of(3_400.0, "MB/s", 450.0),
    },
)

TABLE = """
|  | ours, ipc | ours, tcp | synchronous pyzmq | zmq.asyncio | xoscar | Ray | dask |
|---|---:|---:|---:|---:|---:|---:|---:|
| a call, p50 | 0.21 ms | 0.25 ms | 0.14 ms | - | - | 2.40 ms | - |
| calls/s, 256 in flight | 21,500 | 20,000 | - | 9,000 | - | - | - |
| fan-out to 16, p50 | 1.90 ms | 2.00 ms | - | 4.10 ms | - | - | - |
| echo of 16 MiB | 3.40 GB/s | 1.50 GB/s | 2.10 GB/s | - | 0.45 GB/s | - | - |
"""


def test_the_table_shows_what_the_benchmark_printed() -> None:
    printed = msgspec.json.decode(REPORT.json(), type=Report)
    assert rpc_table(printed) == TABLE.strip()
    assert sorted(PEERS.values()) == sorted(MEASURED)


def test_a_page_has_the_rows_and_columns_of_its_tables() -> None:
    page = (DOCS / "benchmarks.md").read_text(encoding="utf-8")
    queue = Report("queue", dict.fromkeys(QUEUE, of(1.0, "", 1.0)))
    for name, table in (("rpc", rpc_table(REPORT)), ("queue", queue_table(queue))):
        heads = [line.split("|")[1:-1] for line in table.splitlines()]
        shown = [line.split("|")[1:-1] for line in page.partition(f"<!-- figures: {name} -->")[2].strip().splitlines()[: len(heads)]]
        assert [cell.strip() for cell in shown[0]] == [cell.strip() for cell in heads[0]]
        assert [row[0].strip() for row in shown[2:]] == [row[0].strip() for row in heads[2:]]
        assert table in replaced(page, table, name)


def test_the_queue_table_has_value_reference_and_ratio() -> None:
    report = Report("queue", dict.fromkeys(QUEUE, of(1_500.0, "", 1_000.0)))
    rows = queue_table(report).splitlines()
    assert "| put of one row of 1 KB, p50 | 1.50 ms | 1.00 ms | an empty call | 1.50 | 6.40 ms |" in rows
    assert "| put of 64 MiB | 1.50 GB/s | 1.00 GB/s | packed, over tcp | 1.50 | 0.82 GB/s |" in rows
