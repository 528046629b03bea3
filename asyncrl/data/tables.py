"""Rows of a prompt file as plain dicts: parquet, JSON lines, or one JSON array."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec

from asyncrl.data.plain import plain
from asyncrl.errors import DataError

JSON_SUFFIXES = (".jsonl", ".json")
PARQUET_SUFFIX = ".parquet"
ROWS_AT_ONCE = 8192

Place = str
"""Where a row stands, for messages: ``prompts.jsonl, row 3``; rows count from 1, in JSON lines they are lines."""


def read_tables(files: str | Sequence[str]) -> Iterator[tuple[Place, dict[str, Any]]]:
    """Every row of one file or of several in their order, with the place it stands at.

    Raises DataError for a file that is missing, of another kind, or broken; the message names file and row.
    """
    for name in [files] if isinstance(files, str) else files:
        path = Path(name).expanduser()
        if not path.is_file():
            raise DataError(f"{name}: no such file")
        if path.suffix == PARQUET_SUFFIX:
            yield from _read_parquet(path)
        elif path.suffix in JSON_SUFFIXES:
            yield from _read_json(path)
        else:
            raise DataError(f"{name}: expected a file that ends in {PARQUET_SUFFIX}, {' or '.join(JSON_SUFFIXES)}")


def _read_parquet(path: Path) -> Iterator[tuple[Place, dict[str, Any]]]:
    import pyarrow as arrow  # of no use to the other files
    from pyarrow import parquet

    number = 0
    try:
        with parquet.ParquetFile(path) as table:
            for batch in table.iter_batches(batch_size=ROWS_AT_ONCE):
                for row in batch.to_pylist():
                    number += 1
                    yield f"{path}, row {number}", plain(row)
    except arrow.ArrowException as error:
        raise DataError(f"{path}: not a readable parquet file: {error}") from error


def _read_json(path: Path) -> Iterator[tuple[Place, dict[str, Any]]]:
    content = path.read_bytes().removeprefix(b"\xef\xbb\xbf")
    if content.lstrip().startswith(b"["):
        rows = list(enumerate(_decode(content, str(path), list[Any]), start=1))
    else:
        lines = enumerate(content.split(b"\n"), start=1)
        rows = [(number, _decode(line, f"{path}, row {number}", Any)) for number, line in lines if line.strip()]
    for number, row in rows:
        if not isinstance(row, dict):
            raise DataError(f"{path}, row {number}: expected an object, got {type(row).__name__}")
        yield f"{path}, row {number}", row


def _decode(content: bytes, place: Place, kind: Any) -> Any:
    try:
        return msgspec.json.decode(content, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise DataError(f"{place}: not valid JSON: {error}") from error
