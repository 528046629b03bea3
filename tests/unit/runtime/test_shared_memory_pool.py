"""The pool of segments as a table: nothing is given out twice, nothing is lost, the budget holds."""

import os

import pytest
from hypothesis import given, settings, strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule

from asyncrl.runtime.memory_file import MemoryFile
from asyncrl.runtime.segment_pool import SMALLEST, Segment, SegmentPool, size_class

KIB = 1024
BUDGET = 640 * KIB
MOST = 6


class Wall:
    """A connection that writes down what it is told."""

    def __init__(self) -> None:
        self.retired: list[int] = []

    def retire(self, number: int) -> None:
        self.retired.append(number)


def grow(pool: SegmentPool, size: int) -> Segment | None:
    room = pool.reserve(size)
    return pool.admit(MemoryFile.create(room), room) if room else None


@given(st.integers(1, 1 << 31))
def test_a_size_class_holds_its_size_and_wastes_little(size: int) -> None:
    room = size_class(size)
    assert room >= size
    assert room % 4096 == 0
    assert room == SMALLEST or room < 1.25 * size
    assert size_class(room) == room


def test_a_segment_serves_sizes_from_half_of_it() -> None:
    pool = SegmentPool(BUDGET)
    segment = grow(pool, 200 * KIB)
    assert segment is not None
    assert segment.size == 224 * KIB
    assert pool.take(225 * KIB) is None
    assert pool.take(96 * KIB) is None
    assert pool.take(100 * KIB) is segment
    pool.release(segment)
    pool.close()


def test_room_is_made_by_dropping_what_was_free_longest_and_its_readers_hear_of_it() -> None:
    pool, wall = SegmentPool(256 * KIB), Wall()
    first, second, third = (grow(pool, 64 * KIB) for _ in range(3))
    assert first is not None
    assert second is not None
    assert third is not None
    for segment in (first, second, third):
        segment.readers[wall] = True
    taken = pool.take(64 * KIB)
    assert taken is third
    pool.release(third)
    assert pool.reserve(128 * KIB) == 128 * KIB
    assert wall.retired == [first.number]
    assert not os.path.exists(f"/proc/self/fd/{first.file.descriptor}")
    assert pool.reserve(192 * KIB) == 0
    assert wall.retired == [first.number]
    pool.unreserve(128 * KIB)
    assert pool.stats().bytes == 128 * KIB
    pool.close()
    assert wall.retired == [first.number]


def test_what_nobody_took_between_two_looks_is_dropped() -> None:
    pool = SegmentPool(BUDGET)
    grow(pool, 64 * KIB)
    used = grow(pool, 128 * KIB)
    assert used is not None
    assert pool.trim()
    assert pool.take(128 * KIB) is used
    pool.release(used)
    assert pool.trim()
    assert pool.stats().segments == 1
    assert not pool.trim()
    assert (pool.stats().segments, pool.stats().bytes, pool.stats().dropped) == (0, 0, 2)


def test_a_pool_without_a_budget_has_room_for_nothing() -> None:
    pool = SegmentPool(0)
    assert (pool.reserve(1), pool.take(1)) == (0, None)
    assert pool.stats().refused == 1


class PoolMachine(RuleBasedStateMachine):
    """Takes, holds, releases, gives and abandons in any order, against a model that knows who holds what."""

    held = Bundle("held")

    def __init__(self) -> None:
        super().__init__()
        self.pool = SegmentPool(BUDGET, MOST)
        self.present: dict[int, Segment] = {}
        self.holders: dict[int, int] = {}
        self.stamps: dict[int, bytes] = {}
        self.reserved: list[int] = []

    def retire(self, number: int) -> None:
        """The machine is the reader of all segments: so it hears of those that leave."""
        del self.present[number]

    @rule(size=st.integers(1, 400 * KIB))
    def reserve(self, size: int) -> None:
        room = self.pool.reserve(size)
        if room:
            self.reserved.append(room)
        else:
            held = sum(self.present[number].size for number in self.holders)
            full = len(self.holders) + len(self.reserved) >= MOST
            assert full or held + sum(self.reserved) + size_class(size) > BUDGET

    @rule(made=st.booleans())
    def finish(self, made: bool) -> None:
        if self.reserved:
            room = self.reserved.pop(0)
            if made:
                segment = self.pool.admit(MemoryFile.create(room), room)
                segment.readers[self] = True
                self.present[segment.number] = segment
            else:
                self.pool.unreserve(room)

    @rule(target=held, size=st.integers(1, 400 * KIB), stamp=st.binary(min_size=8, max_size=8))
    def take(self, size: int, stamp: bytes) -> Segment | None:
        segment = self.pool.take(size)
        if segment is not None:
            assert segment.number not in self.holders
            assert self.present[segment.number] is segment
            assert size <= segment.size <= 2 * size_class(size)
            self.holders[segment.number] = 1
            segment.view[:8] = stamp
            self.stamps[segment.number] = stamp
        return segment

    @rule(segment=held)
    def hold(self, segment: Segment | None) -> None:
        if segment is not None and segment.number in self.holders:
            self.pool.hold(segment)
            self.holders[segment.number] += 1

    @rule(segment=held)
    def release(self, segment: Segment | None) -> None:
        if segment is not None and segment.number in self.holders:
            assert bytes(segment.file.pages.view()[:8]) == self.stamps[segment.number]
            self.pool.release(segment)
            self.holders[segment.number] -= 1
            if not self.holders[segment.number]:
                del self.holders[segment.number]

    @rule(segment=consumes(held), adopted=st.booleans())
    def leave(self, segment: Segment | None, adopted: bool) -> None:
        if segment is not None and segment.number in self.holders:
            leave = self.pool.give if adopted else self.pool.abandon
            leave(segment)
            leave(segment)
            segment.file.close()
            for _ in range(self.holders.pop(segment.number)):
                self.pool.release(segment)

    @rule()
    def trim(self) -> None:
        assert self.pool.trim() == (self.pool.stats().free_segments > 0)

    @invariant()
    def everything_is_accounted_for(self) -> None:
        stats = self.pool.stats()
        assert stats.bytes + sum(self.reserved) <= BUDGET
        assert stats.segments + len(self.reserved) <= MOST
        assert stats.segments == len(self.present) == len(self.holders) + stats.free_segments
        assert stats.segments == stats.created + stats.adopted - stats.dropped - stats.given - stats.abandoned
        assert stats.bytes == sum(segment.size for segment in self.present.values())
        assert stats.bytes - stats.free_bytes == sum(self.present[number].size for number in self.holders)

    def teardown(self) -> None:
        self.pool.close()
        assert self.pool.stats().segments == 0


TestPool = PoolMachine.TestCase
TestPool.settings = settings(max_examples=25, stateful_step_count=30, deadline=None)


def test_an_adopted_file_is_held_and_counts_against_the_budget() -> None:
    pool = SegmentPool(128 * KIB)
    room = pool.reserve(128 * KIB)
    segment = pool.adopt(MemoryFile.create(128 * KIB), room)
    assert pool.reserve(64 * KIB) == 0
    pool.release(segment)
    assert pool.take(128 * KIB) is segment
    with pytest.raises(AssertionError):
        pool.hold(Segment(9, segment.file))
    pool.close()


def test_what_stays_in_adopted_files_leaves_half_of_the_budget_for_what_is_sent() -> None:
    pool = SegmentPool(256 * KIB)
    room = pool.reserve(128 * KIB, to_keep=True)
    segment = pool.adopt(MemoryFile.create(128 * KIB), room)
    assert pool.reserve(64 * KIB, to_keep=True) == 0
    sent = grow(pool, 128 * KIB)
    assert sent is not None
    pool.release(segment)
    assert pool.reserve(128 * KIB, to_keep=True) == 128 * KIB
    pool.close()
