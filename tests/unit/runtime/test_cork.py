"""Messages that are sent in one turn of the loop travel together, in their order, and come apart again."""

import asyncio
from collections.abc import Sequence

from hypothesis import given, strategies as st

from asyncrl.runtime.cork import EARLY, MARK, SMALL, Cork, deliver, join

messages_of = st.lists(
    st.lists(st.binary(max_size=40), min_size=1, max_size=3).filter(lambda frames: frames[0][:1] not in (b"", MARK)), max_size=20
)


@given(messages_of.filter(bool))
def test_what_is_joined_comes_apart(messages: list[list[bytes]]) -> None:
    seen: list[list[bytes]] = []
    deliver([memoryview(frame) for frame in join([*messages])], lambda frames: seen.append([bytes(frame) for frame in frames]))
    assert seen == messages


@given(st.binary(max_size=60))
def test_any_bytes_behind_the_mark_are_delivered_and_never_raise(tail: bytes) -> None:
    seen: list[int] = []
    deliver([memoryview(MARK + tail)], lambda frames: seen.append(len(frames)))
    assert seen or tail == b""


@given(st.lists(st.one_of(st.binary(min_size=1, max_size=8), st.just(b"L" * (SMALL + 1)), st.just(b"F")), min_size=1, max_size=30))
def test_the_order_is_kept_whatever_is_small_or_large(messages: list[bytes]) -> None:
    arrived: list[bytes] = []

    def emit(frames: Sequence[bytes]) -> None:
        deliver([memoryview(frame) for frame in frames], lambda got: arrived.append(b"".join(map(bytes, got))))

    async def main() -> None:
        cork = Cork(asyncio.get_running_loop(), emit)
        for message in messages:
            cork.send([b"h", b"frame"] if message == b"F" else [message])
        waiting = sum(map(len, messages[len(arrived) :]))
        assert waiting < EARLY
        await asyncio.sleep(0)

    messages = [b"m" + message if message != b"F" else message for message in messages]
    asyncio.run(main())
    assert arrived == [b"hframe" if message == b"F" else message for message in messages]


async def test_a_quiet_link_sends_at_once_and_a_busy_one_once_a_turn() -> None:
    sent: list[Sequence[bytes]] = []
    cork = Cork(asyncio.get_running_loop(), sent.append)
    cork.send([b"a"])
    assert sent == [[b"a"]]
    cork.send([b"b"])
    cork.send([b"c"])
    assert len(sent) == 1
    await asyncio.sleep(0)
    assert len(sent) == 2
    await asyncio.sleep(0)
    cork.send([b"d"])
    assert sent[-1] == [b"d"]


async def test_on_a_busy_link_a_few_kilobytes_do_not_wait_for_the_end_of_the_turn() -> None:
    sent: list[Sequence[bytes]] = []
    cork = Cork(asyncio.get_running_loop(), sent.append)
    for _ in range(1 + 3 * EARLY // 1024):
        cork.send([b"m" * 1024])
    assert [len(frames[0]) // 1024 for frames in sent] == [1, EARLY // 1024, EARLY // 1024, EARLY // 1024]
