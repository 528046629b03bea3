"""What an end does with messages about memory that cannot be true: it ends the connection with words, and touches nothing."""

import asyncio
import os
import random
from collections.abc import Callable

import pytest
from hypothesis import given, settings, strategies as st

from asyncrl.runtime.memory_file import MemoryFile
from asyncrl.runtime.segment_pool import SMALLEST
from asyncrl.runtime.sharing_messages import (
    MARK,
    Able,
    Adopted,
    Answer,
    Lent,
    Offer,
    Place,
    Released,
    Retired,
    Shared,
    SharingMessage,
    marked,
)
from tests.unit.runtime.shared_ends import HEADER, MIB, Ends, connected, settled

PROOF = b"p" * 32


class Liar:
    """The calling end says what it likes; its proof was accepted."""

    def __init__(self, ends: Ends, file: MemoryFile) -> None:
        self.ends, self.file = ends, file

    def lent(self, loan: int = 1, number: int = 1, descriptor: int = -1, inode: int = -1, size: int = -1) -> Lent:
        file = self.file
        return Lent(
            loan,
            number,
            file.descriptor if descriptor < 0 else descriptor,
            file.inode if inode < 0 else inode,
            file.size if size < 0 else size,
        )

    def shared(self, place: Place, **lent: int) -> Shared:
        return Shared([self.lent(**lent)], [], [place])

    async def say(self, message: SharingMessage | bytes, *behind: bytes) -> None:
        self.ends.calls.say(message, *behind)
        await settled()


async def liar(ends: Ends, file: MemoryFile) -> Liar:
    file.pages.view()[:32] = PROOF
    made = Liar(ends, file)
    await made.say(Offer(os.getpid(), file.descriptor, file.inode, file.size, PROOF))
    return made


WHOLE = Place(0, 0, 0, SMALLEST)

LIES: dict[str, tuple[Callable[[Liar], SharingMessage | bytes], str]] = {
    "bytes": (lambda _: MARK + b"\x91\xa3???", "cannot be read"),
    "nothing": (lambda _: MARK, "cannot be read"),
    "an unknown field": (lambda _: marked(Released([1]))[:-1] + b"\xff", "cannot be read"),
    "a second offer": (lambda me: Offer(os.getpid(), me.file.descriptor, me.file.inode, me.file.size, PROOF), "a second offer"),
    "an answer to no offer": (lambda _: Answer(""), "Answer out of turn"),
    "a second greeting": (lambda _: Able(), "Able out of turn"),
    "a loan that does not run": (lambda _: Released([1]), "loan 1 is returned, which does not run"),
    "adopting what was not lent": (lambda _: Adopted([7]), "loan 7 is returned, which does not run"),
    "returning what was not lent": (lambda _: Shared([], [3], [WHOLE]), "loan 3 is returned, which does not run"),
    "bytes behind the end": (lambda me: me.shared(Place(0, 0, 1, SMALLEST)), f"bytes 1 to {SMALLEST + 1} of a segment of {SMALLEST}"),
    "bytes far behind the end": (lambda me: me.shared(Place(0, 0, (1 << 64) - 1, 1)), "of a segment of"),
    "a segment that is not listed": (lambda me: me.shared(Place(0, 1, 0, 1)), "buffer 0 of segment 1"),
    "a buffer behind the message": (lambda me: me.shared(Place(1, 0, 0, 1)), "buffer 1 of segment 0"),
    "two buffers in one place": (lambda me: Shared([me.lent()], [], [WHOLE, WHOLE]), "buffer 0 of segment 0"),
    "more segments than buffers": (lambda me: Shared([me.lent(), me.lent(2, 2)], [], [WHOLE]), "2 segments with 1 buffers"),
    "one segment twice": (lambda me: Shared([me.lent(), me.lent(2)], [], [WHOLE, Place(1, 1, 0, 1)]), "segment 1 twice"),
    "loans that fall": (lambda me: Shared([me.lent(2, 1), me.lent(1, 2)], [], [WHOLE, Place(1, 1, 0, 1)]), "segment 2 twice"),
    "another size": (lambda me: me.shared(WHOLE, size=SMALLEST + 4096), "bytes were announced"),
    "another file": (lambda me: me.shared(WHOLE, inode=1), "inode 1 and"),
    "the standard input": (lambda me: me.shared(WHOLE, descriptor=0), "descriptor 0 of process"),
}


@pytest.mark.parametrize("lies", [list(LIES)[::2], list(LIES)[1::2]], ids=["even", "odd"])
async def test_a_lie_ends_the_connection_with_words(lies: list[str]) -> None:
    for lie in lies:
        make, words = LIES[lie]
        file = MemoryFile.create(SMALLEST)
        async with connected() as ends:
            me = await liar(ends, file)
            assert ends.serves.broken_reasons == []
            await me.say(make(me), HEADER)
            assert words in "".join(ends.serves.broken_reasons), lie
            assert ends.serves.inbox == []
        file.close()


async def test_a_descriptor_that_is_closed_is_a_loss_and_no_lie() -> None:
    file = MemoryFile.create(SMALLEST)
    async with connected() as ends:
        me = await liar(ends, file)
        await me.say(me.shared(WHOLE, descriptor=4000), HEADER)
        assert ends.serves.lost_causes == [f"its shared memory is gone (descriptor 4000 of process {os.getpid()} is gone)"]
    file.close()


async def test_a_segment_must_stay_what_it_was() -> None:
    file, other = MemoryFile.create(SMALLEST), MemoryFile.create(SMALLEST)
    async with connected() as ends:
        me = await liar(ends, file)
        await me.say(me.shared(WHOLE), HEADER)
        ends.serves.inbox.clear()
        await settled()
        await me.say(me.shared(WHOLE, loan=2, descriptor=other.descriptor, inode=other.inode), HEADER)
        assert "as another one than before" in ends.serves.broken_reasons[0]
    async with connected() as ends:
        me = await liar(ends, file)
        await me.say(me.shared(WHOLE), HEADER)
        await me.say(Retired([1]))
        assert "retired while it is on loan" in ends.serves.broken_reasons[0]
    file.close()
    other.close()


async def test_without_the_right_proof_nothing_is_borrowed() -> None:
    file = MemoryFile.create(SMALLEST)
    async with connected() as ends:
        me = Liar(ends, file)
        await me.say(me.shared(WHOLE), HEADER)
        assert "a segment that was not offered" in ends.serves.broken_reasons[0]
    for process, inode in ((os.getpid(), file.inode), (os.getpid(), 1), (1 << 40, file.inode)):
        async with connected() as ends:
            me = Liar(ends, file)
            await me.say(Offer(process, file.descriptor, inode, SMALLEST, PROOF))
            assert ends.serves.broken_reasons == []
            await me.say(me.shared(WHOLE), HEADER)
            assert "a segment that was not offered" in ends.serves.broken_reasons[0]
    file.close()


async def test_a_stranger_is_not_listened_to() -> None:
    file = MemoryFile.create(SMALLEST)
    async with connected() as ends:
        ends.serves.admitted = False
        await liar(ends, file)
        assert ends.serves.broken_reasons == ["a message about shared memory before the hello"]
    file.close()


def mutated(message: bytes, seed: int) -> bytes:
    chance = random.Random(seed)
    changed = bytearray(message)
    for _ in range(chance.randint(1, 3)):
        match chance.randrange(3):
            case 0:
                changed[chance.randrange(1, len(changed))] = chance.randrange(256)
            case 1:
                del changed[chance.randrange(1, len(changed)) :]
                changed += b"\x00"
            case _:
                changed.insert(chance.randrange(1, len(changed)), chance.randrange(256))
    return bytes(changed)


@given(seeds=st.lists(st.integers(0, 1 << 32), min_size=20, max_size=20))
@settings(max_examples=10, deadline=None)
def test_changed_messages_are_refused_or_read_and_never_more(seeds: list[int]) -> None:
    async def run() -> None:
        file = MemoryFile.create(SMALLEST)
        for seed in seeds:
            async with connected(budget=MIB) as ends:
                me = await liar(ends, file)
                valid = marked(Shared([me.lent()], [], [Place(0, 0, 64, 1000), Place(1, 0, 2000, SMALLEST - 2000)]))
                await me.say(mutated(valid, seed), HEADER, b"frame")
                for message in ends.serves.inbox:
                    assert sum(map(sum, message)) >= 0
        file.close()

    asyncio.run(run())
