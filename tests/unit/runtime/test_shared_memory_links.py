"""The protocol of shared memory over one connection: who owns which bytes, and when."""

import asyncio
import resource
import threading
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from asyncrl.runtime import shared_memory
from asyncrl.runtime.shared_memory import LINGER
from asyncrl.runtime.sharing import SMALL, WORTH
from tests.unit.runtime.shared_ends import HEADER, MIB, connected, settled


def mapped() -> int:
    """Memory files that are mapped, by owners and readers alike."""
    return Path("/proc/self/maps").read_text().count("memfd:asyncrl")


def pattern(size: int, seed: int = 0) -> bytes:
    return (np.arange(size, dtype=np.uint32) * (2 * seed + 1) // 3).astype(np.uint8).tobytes()


async def test_the_first_large_message_goes_as_frames_and_later_ones_through_segments() -> None:
    data = pattern(MIB)
    async with connected() as ends:
        for taken in (0, 0, 1, 2):
            ends.calls.link.send([HEADER, b"small", data, b"tail"])
            await settled()
            small, large, tail = ends.serves.take()
            assert (bytes(small), bytes(large), bytes(tail)) == (b"small", data, b"tail")
            assert ends.calls.memory.stats().taken == taken
            del large
            await settled()
        stats = ends.calls.memory.stats()
        assert (stats.segments, stats.free_segments, stats.refused) == (1, 1, 1)


@given(sizes=st.lists(st.sampled_from([0, 1, 500, SMALL, SMALL + 1, WORTH, WORTH + 63, 900_000]), min_size=1, max_size=7))
@settings(max_examples=15, deadline=None)
def test_every_buffer_arrives_in_its_place(sizes: list[int]) -> None:
    async def run() -> None:
        buffers = [pattern(size, seed) for seed, size in enumerate(sizes)]
        async with connected() as ends:
            for _ in range(4):
                ends.calls.link.send([HEADER, *buffers])
                await settled()
                assert [bytes(each) for each in ends.serves.take()] == buffers
            shared = sum(size for size in sizes if size > SMALL) >= WORTH
            assert (ends.calls.memory.stats().taken > 0) == shared

    asyncio.run(run())


async def test_the_sender_may_change_its_buffer_and_the_receiver_may_change_what_it_got() -> None:
    async with connected() as ends:
        await ends.warm(MIB, count=2)
        data = bytearray(pattern(MIB))
        ends.calls.link.send([HEADER, data])
        data[:10] = b"overwritten"[:10]
        await settled()
        (got,) = ends.serves.take()
        assert bytes(got) == pattern(MIB)
        got[:4] = b"mine"
        ends.calls.link.send([HEADER, data])
        await settled()
        assert (bytes(got[:4]), bytes(got[4:])) == (b"mine", pattern(MIB)[4:])


async def test_a_segment_goes_back_when_the_last_array_on_it_is_gone_on_whatever_thread() -> None:
    async with connected() as ends:
        await ends.warm(MIB)
        ends.calls.link.send([HEADER, pattern(MIB)])
        await settled()
        (got,) = ends.serves.take()
        held = [np.frombuffer(got, np.float64).reshape(2, -1)[1, ::2]]
        del got
        await settled()
        assert ends.calls.memory.stats().free_segments == 0
        thread = threading.Thread(target=held.clear)
        thread.start()
        thread.join()
        await settled()
        assert ends.calls.memory.stats().free_segments == 1


async def test_without_a_free_segment_within_the_budget_buffers_travel_as_frames() -> None:
    async with connected(budget=2 * MIB) as ends:
        await ends.warm(MIB, count=2)
        refused = ends.calls.memory.stats().refused
        for seed in range(4):
            ends.calls.link.send([HEADER, pattern(MIB, seed)])
        await settled()
        kept = [ends.serves.take()[0] for _ in range(4)]
        assert [bytes(each) for each in kept] == [pattern(MIB, seed) for seed in range(4)]
        stats = ends.calls.memory.stats()
        assert (stats.segments, stats.bytes, stats.taken, stats.refused - refused) == (2, 2 * MIB, 2, 2)


async def test_an_end_without_a_budget_declines_and_both_go_on_with_frames() -> None:
    async with connected(budget=8 * MIB, served_budget=0) as ends:
        for sender, receiver in ((ends.calls, ends.serves), (ends.serves, ends.calls)) * 3:
            sender.link.send([HEADER, pattern(MIB)])
            await settled()
            assert bytes(receiver.take()[0]) == pattern(MIB)
        assert ends.calls.memory.stats().segments == ends.serves.memory.stats().segments == 0
        assert ends.calls.broken_reasons == ends.serves.broken_reasons == []


async def test_nothing_is_said_about_memory_before_a_large_message() -> None:
    async with connected() as ends:
        for _ in range(3):
            ends.calls.link.send([HEADER, b"x" * SMALL])
            ends.serves.link.send([HEADER])
        await settled()
        assert len(ends.serves.inbox) == len(ends.calls.inbox) == 3
        assert mapped() == 0


async def test_a_buffer_that_is_sent_back_returns_in_its_segment_without_a_copy() -> None:
    async with connected() as ends:
        await ends.warm(MIB)
        ends.calls.link.send([HEADER, pattern(MIB)])
        await settled()
        header, large = ends.serves.inbox.pop()
        large[:5] = b"heard"
        ends.serves.link.send([HEADER, b"note", large[: MIB // 2], b"more", large[MIB // 2 :]])
        ends.serves.link.send([header])
        del header, large
        await settled()
        note, first, more, second = ends.calls.take()
        assert (bytes(note), bytes(more)) == (b"note", b"more")
        assert bytes(first) + bytes(second) == b"heard" + pattern(MIB)[5:]
        assert bytes(ends.calls.inbox.pop()[0]) == HEADER
        assert ends.serves.memory.stats().taken == 0
        assert ends.calls.memory.stats().free_segments == 0
        first[:4] = b"mine"
        del note, first, more, second
        await settled()
        assert ends.calls.memory.stats().free_segments == 1


async def test_what_somebody_keeps_is_sent_back_as_a_copy_of_its_own() -> None:
    async with connected() as ends:
        await ends.warm(MIB)
        for taken in (1, 1):
            ends.calls.link.send([HEADER, pattern(MIB)])
            await settled()
            (kept,) = ends.serves.take()
            ends.serves.link.send([HEADER, kept])
            await settled()
            kept[:6] = b"change"
            # The second time no segment is free there: then it is a frame.
            assert ends.serves.memory.stats().taken == taken
            assert bytes(ends.calls.inbox[-1][1]) == pattern(MIB)
            assert ends.calls.memory.stats().free_segments == 0
            assert bytes(kept) == b"change" + pattern(MIB)[6:]
            del kept
            await settled()
            assert ends.calls.memory.stats().free_segments == 1


async def test_messages_keep_their_order_behind_one_that_waits_to_return_a_segment() -> None:
    async with connected() as ends:
        await ends.warm(MIB)
        ends.calls.link.send([HEADER, pattern(MIB)])
        await settled()
        (got,) = ends.serves.take()
        for number in range(3):
            ends.serves.link.send([HEADER, b"%d" % number])
            ends.serves.link.send([HEADER, got[number * 200_000 : number * 200_000 + 300_000]])
        ends.serves.link.send([HEADER, b"last"])
        del got
        await settled()
        came = [bytes(ends.calls.take()[0]) for _ in range(7)]
        assert [each if len(each) < 10 else len(each) for each in came] == [b"0", 300_000, b"1", 300_000, b"2", 300_000, b"last"]
        assert [came[at] for at in (1, 3, 5)] == [pattern(MIB)[n * 200_000 : n * 200_000 + 300_000] for n in range(3)]
        await settled()
        assert ends.calls.memory.stats().free_segments == 1


async def test_what_waits_leaves_before_the_link_closes() -> None:
    async with connected() as ends:
        await ends.warm(MIB)
        ends.calls.link.send([HEADER, pattern(MIB)])
        await settled()
        (got,) = ends.serves.take()
        ends.serves.link.send([HEADER, got])
        ends.serves.link.send([HEADER, b"goodbye"])
        ends.serves.link.close()
        await settled()
        assert bytes(ends.calls.take()[0]) == pattern(MIB)
        assert bytes(ends.calls.take()[0]) == b"goodbye"
        assert ends.calls.lost_causes == ["connection closed"]


async def test_what_was_sent_last_can_still_be_opened_for_a_moment() -> None:
    async with connected() as ends:
        await ends.warm(MIB)
        ends.calls.link.send([HEADER, pattern(MIB)])
        ends.calls.link.close()
        assert ends.calls.memory.stats().abandoned == 1
        await settled()
        assert bytes(ends.serves.take()[0]) == pattern(MIB)
        closed = asyncio.get_running_loop().time()
        await ends.calls.memory.close()
        assert asyncio.get_running_loop().time() - closed < 3 * LINGER
        assert ends.calls.memory.stats().segments == 0


async def test_a_buffer_made_in_a_segment_is_sent_without_a_copy_and_once() -> None:
    async with connected() as ends:
        await ends.warm(MIB, count=2)
        array = np.frombuffer(ends.calls.memory.allocate(MIB), np.uint8)
        array[:] = np.frombuffer(pattern(MIB), np.uint8)
        assert ends.calls.memory.stats().taken == 1
        ends.calls.link.send([HEADER, array.data[: MIB // 2], b"x", array.data[MIB // 2 :]])
        await settled()
        assert ends.calls.memory.stats().taken == 1
        first, _, second = ends.serves.take()
        assert bytes(first) + bytes(second) == pattern(MIB)
        ends.calls.link.send([HEADER, array.data])
        await settled()
        assert ends.calls.memory.stats().taken == 2
        second[:] = bytes(MIB // 2)
        assert bytes(ends.serves.take()[0]) == pattern(MIB)
        del first, second
        await settled()
        assert ends.calls.memory.stats().free_segments == 1
        del array
        await settled()
        assert ends.calls.memory.stats().free_segments == 2


async def test_memory_is_allocated_in_any_case() -> None:
    async with connected(budget=MIB) as ends:
        plain = ends.calls.memory.allocate(MIB)
        plain[:] = pattern(MIB)
        small = ends.calls.memory.allocate(10)
        assert (len(small), small.readonly) == (10, False)
        ends.calls.link.send([HEADER, plain])
        await settled()
        assert bytes(ends.serves.take()[0]) == pattern(MIB)


async def test_what_stays_is_adopted_and_the_sender_forgets_it() -> None:
    async with connected() as ends:
        await ends.warm(MIB)
        ends.calls.link.send([HEADER, pattern(MIB)])
        await settled()
        (got,) = ends.serves.take()
        kept = np.frombuffer(got, np.uint8)[100:]
        assert ends.serves.memory.adopt(kept)
        assert not ends.serves.memory.adopt(kept)
        assert not ends.serves.memory.adopt(b"something else")
        del got
        await settled()
        assert (ends.calls.memory.stats().segments, ends.calls.memory.stats().given) == (0, 1)
        adopter = ends.serves.memory.stats()
        assert (adopter.segments, adopter.bytes - adopter.free_bytes, adopter.adopted) == (2, MIB, 1)
        ends.calls.link.close()
        await settled()
        assert kept.tobytes() == pattern(MIB)[100:]
        del kept
        await settled()
        assert ends.serves.memory.stats().free_segments == 2


async def test_an_adopted_segment_serves_its_new_owner() -> None:
    async with connected() as ends:
        await ends.warm(MIB)
        ends.calls.link.send([HEADER, pattern(MIB)])
        await settled()
        (got,) = ends.serves.take()
        assert ends.serves.memory.adopt(got)
        # Its owner keeps it: what is sent of it is a copy.
        ends.serves.link.send([HEADER, got])
        await settled()
        got[:4] = b"mine"
        assert bytes(ends.calls.take()[0]) == pattern(MIB)
        del got
        await settled()
        for seed in range(2):
            ends.serves.link.send([HEADER, pattern(MIB, seed)])
        await settled()
        assert [bytes(ends.calls.take()[0]) for _ in range(2)] == [pattern(MIB, seed) for seed in range(2)]
        assert ends.serves.memory.stats().taken == 3


async def test_what_does_not_fit_half_of_the_budget_is_not_adopted() -> None:
    async with connected(budget=8 * MIB, served_budget=2 * MIB) as ends:
        await ends.warm(MIB)
        for _ in range(2):
            ends.calls.link.send([HEADER, pattern(MIB)])
            await settled()
        first, second = (ends.serves.take()[0] for _ in range(2))
        assert ends.serves.memory.adopt(first)
        assert not ends.serves.memory.adopt(second)
        await settled()
        assert (bytes(first), bytes(second)) == (pattern(MIB), pattern(MIB))
        assert ends.calls.memory.stats().given == 1


async def test_segments_lent_to_a_connection_that_broke_are_never_used_again() -> None:
    async with connected() as ends:
        await ends.warm(MIB, count=2)
        ends.calls.link.send([HEADER, pattern(MIB)])
        await settled()
        (got,) = ends.serves.take()
        ends.calls.link.lost("the other end is silent")
        assert ends.calls.lost_causes == ["the other end is silent"]
        stats = ends.calls.memory.stats()
        assert (stats.segments, stats.free_segments, stats.abandoned) == (1, 1, 1)
        got[:4] = b"late"
        own = ends.calls.memory.allocate(MIB)
        own[:] = bytes(MIB)
        assert bytes(got) == b"late" + pattern(MIB)[4:]


async def test_what_nobody_uses_is_given_back_after_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    class Wall:
        def __init__(self) -> None:
            self.gone = asyncio.Event()

        def retire(self, number: int) -> None:
            self.gone.set()

    monkeypatch.setattr(shared_memory, "UNUSED_SECONDS", 0.02)
    async with connected() as ends:
        await ends.warm(MIB)
        segment, wall = ends.calls.memory.take(MIB), Wall()
        assert segment is not None
        segment.readers[wall] = True
        ends.calls.memory.release(segment)
        async with asyncio.timeout(5):
            await wall.gone.wait()
        assert (ends.calls.memory.stats().segments, ends.calls.memory.stats().dropped) == (0, 1)


async def test_nobody_keeps_a_mapping_of_a_segment_that_is_gone() -> None:
    async with connected() as ends:
        await ends.warm(MIB)
        ends.calls.link.send([HEADER, pattern(MIB)])
        await settled()
        ends.serves.inbox.clear()
        await settled()
        before = mapped()
        # Once as its owner, once as its reader.
        assert ends.calls.memory.pool.trim()
        assert not ends.calls.memory.pool.trim()
        await settled()
        assert mapped() == before - 2


async def test_a_segment_that_cannot_be_made_costs_no_message(caplog: pytest.LogCaptureFixture) -> None:
    async with connected() as ends:
        for _ in range(2):
            ends.calls.link.send([HEADER, pattern(MIB)])
            await settled()
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        await asyncio.to_thread(int)
        resource.setrlimit(resource.RLIMIT_NOFILE, (3, hard))
        try:
            for _ in range(3):
                ends.calls.link.send([HEADER, pattern(4 * MIB)])
                await settled()
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        assert [len(ends.serves.take()[0]) for _ in range(5)] == [MIB] * 2 + [4 * MIB] * 3
        assert "Too many open files" in caplog.text
        assert ends.calls.memory.stats().bytes == MIB


async def test_closing_ends_segments_in_the_making_and_leaves_no_timer() -> None:
    async with connected() as ends:
        ends.calls.link.send([HEADER, pattern(MIB)])
        await settled()
        ends.calls.link.send([HEADER, pattern(4 * MIB)])
        await ends.calls.memory.close()
        assert ends.calls.memory.stats().segments == 0
