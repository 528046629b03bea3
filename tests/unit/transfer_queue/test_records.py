"""A record on disk: whatever one bit of it becomes, all the others are read, and what is lost is named."""

import random

import pytest
from hypothesis import given, settings, strategies as st

from asyncrl.errors import QueueStorageError
from asyncrl.tensors.wire import Column
from asyncrl.transfer_queue.records import (
    FRAME_SIZE,
    MAGIC,
    ClearRecord,
    Damage,
    PutRecord,
    Record,
    check_format,
    encode,
    field_heads,
    read,
)
from asyncrl.transfer_queue.rows import Origin

AT = Origin("agent-0", 12.5, 3, 2)


def written(number: int, values: list[int]) -> tuple[PutRecord, bytes]:
    """A put of one row, and its bytes."""
    fields = {"x": Column.jagged("int64", [values])}
    record = PutRecord(number, "train", [f"r{number}"], {f"r{number}": {"n": number}}, field_heads(fields, {"x": [(AT, 1)]}))
    return record, b"".join(bytes(piece) for piece in encode(record, list(fields.values())))


FILE = [written(1, [1, 2]), written(2, [3]), written(3, [])]
DATA = b"".join(data for _, data in FILE)
STARTS = [0, len(FILE[0][1]), len(FILE[0][1]) + len(FILE[1][1])]


def found_in(data: bytes) -> tuple[list[Record], list[Damage]]:
    whole: list[Record] = []
    damages: list[Damage] = []
    for found in read("f", memoryview(data)):
        if isinstance(found, Damage):
            damages.append(found)
        else:
            whole.append(found[0])
    return whole, damages


def flipped(place: int, bit: int, data: bytes = DATA) -> bytes:
    changed = bytearray(data)
    changed[place] ^= 1 << bit
    return bytes(changed)


def test_any_flipped_bit_of_any_record_costs_at_most_that_record() -> None:
    records = [record for record, _ in FILE]
    for hit, (start, (record, data)) in enumerate(zip(STARTS, FILE, strict=True)):
        header_end = start + len(encode(record)[0])
        for place in range(start, start + len(data)):
            for bit in range(8):
                whole, damages = found_in(flipped(place, bit))
                if place < start + FRAME_SIZE:
                    # One bit of a frame can be told from the others: nothing is lost.
                    assert (whole, damages) == (records, [])
                    continue
                assert whole == records[:hit] + records[hit + 1 :]
                [damage] = damages
                assert (damage.offset, damage.size, damage.torn) == (start, len(data), False)
                assert damage.keys == ([] if place < header_end else record.keys)
                assert damage.partition == ("" if place < header_end else "train")


@settings(max_examples=200, deadline=None)
@given(start=st.integers(0, len(DATA) - 1), noise=st.binary(min_size=1, max_size=60))
def test_bytes_that_are_overwritten_cost_the_records_they_touch(start: int, noise: bytes) -> None:
    end = min(len(DATA), start + len(noise))
    data = DATA[:start] + noise[: end - start] + DATA[end:]
    whole, damages = found_in(data)
    ends = [*STARTS[1:], len(DATA)]
    untouched = [record for (record, _), first, last in zip(FILE, STARTS, ends, strict=True) if data[first:last] == DATA[first:last]]
    assert [record for record in whole if record in untouched] == untouched
    assert all(record in [written for written, _ in FILE] for record in whole)
    assert not any(damage.torn for damage in damages)
    assert sum(damage.size for damage in damages) + sum(len(data) for record, data in FILE if record in whole) == len(DATA)


def test_a_file_that_ends_within_a_record_is_torn_there_and_nowhere_else() -> None:
    for cut in range(len(DATA)):
        whole, damages = found_in(DATA[:cut])
        complete = [record for (record, data), start in zip(FILE, STARTS, strict=True) if start + len(data) <= cut]
        assert whole == complete
        begun = max(start for start in STARTS if start <= cut)
        assert [(damage.offset, damage.torn) for damage in damages] == ([] if begun == cut else [(begun, True)])


def test_bytes_that_only_look_like_a_record_within_damage_are_not_read_as_one() -> None:
    noise = MAGIC + random.Random(4).randbytes(100)
    whole, damages = found_in(bytes(40) + noise + FILE[0][1])
    assert whole == [FILE[0][0]]
    assert [(damage.offset, damage.size, damage.keys) for damage in damages] == [(0, 40 + len(noise), [])]


def test_a_cleared_row_and_a_put_come_back_as_they_were() -> None:
    clear = ClearRecord(4, "val", ["a", "b"], 7, ("rank0", 1, 9))
    tags = PutRecord(5, "val", [], {"c": {"n": [1, None]}}, [], merges=True)
    assert found_in(b"".join(bytes(encode(record)[0]) for record in (clear, tags))) == ([clear, tags], [])


def test_a_file_of_an_earlier_format_is_refused_by_its_name() -> None:
    with pytest.raises(QueueStorageError, match=r"shard-0/00000001.atq: it is in format ATQ1, this version reads and writes ATQ2 only"):
        check_format("shard-0/00000001.atq", memoryview(b"ATQ1" + bytes(100)))
    for bit in range(32):
        check_format("f", memoryview(flipped(bit // 8, bit % 8)))
    check_format("f", memoryview(b""))
