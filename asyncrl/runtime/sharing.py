"""Large buffers between two processes of one host: a message names a segment and a place in it, instead of carrying them.

``SharedLink`` stands between a link and its receiver, at both ends of a connection; neither knows of it. The first large
message of a direction goes as frames, with an offer. When the other end can open our memory files, later ones are copied
into a segment, once, and used where they are. Who has a segment on loan owns it, and may write to it, until nothing at its
end refers to it; then it goes back, with a message that carries it if there is one.
"""

import asyncio
import contextlib
from collections import deque
from collections.abc import Callable, Sequence
from typing import Literal, TypeAlias

from asyncrl.errors import WireError
from asyncrl.runtime.borrowing import Borrowing
from asyncrl.runtime.codec import MAX_FRAME_BYTES, MAX_FRAMES
from asyncrl.runtime.lending import Lending
from asyncrl.runtime.shapes import Buffer
from asyncrl.runtime.shared_memory import SharedMemory
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
    unmarked,
)
from asyncrl.runtime.transport import CallingReceiver, Frames, Link, Receiver

SMALL = 16384
"""Buffers up to this size stay frames: they are copied on arrival anyway, and do not keep a segment from going back."""
WORTH = 131072
"""Bytes of larger buffers in one message that go into a segment. At half of it the kernel's copies of frames, two each way, take as
long as one copy and what a loan costs: some 30 us."""
FIRST_BYTE = MARK[0]

Part: TypeAlias = tuple[int, int, int]
"""Loan, offset, length."""


class Returning:
    """A message with buffers that lie in loans of the other end. It waits until the end of the turn for whoever else still
    refers to them: if nobody does, it returns the loans, else it carries copies. ``parts`` are those buffers by their index,
    each empty in ``frames``; ``loans`` names each loan once."""

    __slots__ = ("frames", "loans", "parts")

    def __init__(self, frames: list[Buffer], parts: dict[int, Part]) -> None:
        self.frames, self.parts = frames, parts
        self.loans = list(dict.fromkeys(loan for loan, _, _ in parts.values()))


class SharedLink:
    """One end of a connection within a host: a link to the receiver, and a receiver to the link."""

    def __init__(self, memory: SharedMemory, role: str) -> None:
        self.role = role
        self._memory, self._loop = memory, asyncio.get_running_loop()
        self._link: Link
        self._receiver: Receiver
        self._deliver: Callable[[Sequence[memoryview]], None]
        self._caller: CallingReceiver | None = None
        self._lending: Literal["unable", "unasked", "asked", "agreed", "declined"] = "unable"
        self._lends = Lending(memory, self)
        self._borrows = Borrowing(memory, self._say, self._leave_early)
        self._queue: deque[Frames | Returning] = deque()
        self._greets = self._leaving = self._ended = False

    def accepted(self, link: Link, receiver: Receiver) -> None:
        """This is the callee's end."""
        self._link, self._receiver, self._deliver = link, receiver, receiver.received
        self._memory.borrowers[self] = None

    def connected(self, link: Link, receiver: CallingReceiver) -> None:
        """This is the caller's end."""
        self.accepted(link, receiver)
        self._caller, self._greets = receiver, True

    @property
    def state(self) -> str:
        return self._link.state

    @property
    def tells(self) -> bool:
        """See ``Link``."""
        return self._link.tells

    @property
    def admitted(self) -> bool:
        return self._receiver.admitted

    def broken(self, seen: str) -> None:
        self._end(orderly=False)
        self._receiver.broken(seen)

    def send(self, frames: Frames) -> None:
        if len(frames) == 1 and not self._queue:
            self._link.send(frames)
        elif sum(map(len, frames)) - len(frames[0]) >= WORTH:
            self._send_large(frames)
        else:
            self._pass_on(frames)

    def _say(self, message: SharingMessage) -> None:
        if not self._ended:
            self._link.send([marked(message)])

    def _pass_on(self, frames: Frames) -> None:
        """Behind what waits. A header that is too long waits for nothing: the link raises its error."""
        if self._queue and len(frames[0]) <= MAX_FRAME_BYTES:
            self._queue.append(frames)
        else:
            self._link.send(self._in_segments(frames))

    def _send_large(self, frames: Frames) -> None:
        parts: dict[int, Part] = {}
        rest = list(frames)
        for index, view in large_ones(frames):
            place = self._borrows.place_of(view)
            if place is not None:
                parts[index] = (*place, view.nbytes)
                rest[index + 1] = b""
        if not parts or len(frames[0]) > MAX_FRAME_BYTES:
            self._pass_on(frames)
            return
        returning = Returning(rest, parts)
        for loan in returning.loans:
            self._borrows.claim(loan)
        self._queue.append(returning)
        self._loop.call_soon(self._leave)

    def _leave(self) -> None:
        """The turn is over: what waits leaves."""
        self._memory.collect()
        while self._queue:
            self._leave_one()

    def _leave_early(self) -> None:
        """A loan that waits to be returned is referred to by nobody else any more."""
        while self._queue and not self._leaving:
            first = self._queue[0]
            if isinstance(first, Returning) and not all(map(self._borrows.is_unused, first.loans)):
                return
            self._leave_one()

    def _leave_one(self) -> None:
        first = self._queue.popleft()
        # Looking for a segment may bring word of another loan that has ended, whose message is behind this one.
        self._leaving = True
        try:
            self._link.send(self._returned(first) if isinstance(first, Returning) else self._in_segments(first))
        finally:
            self._leaving = False

    def _returned(self, message: Returning) -> Frames:
        """A message with the loans that end with it, and with copies of what somebody keeps."""
        frames = message.frames
        over = [loan for loan in message.loans if self._borrows.give_back(loan)]
        back = []
        for index, (loan, offset, length) in message.parts.items():
            if loan in over:
                back.append(Place(index, over.index(loan), offset, length))
            else:
                frames[index + 1] = self._borrows.bytes_at(loan, offset, length)
        lent, places = self._lent(frames)
        placed = {place.index for place in [*places, *back]}
        for index in message.parts.keys() - placed:
            frames[index + 1] = bytes(frames[index + 1])
        for loan in message.loans:
            if loan not in over:
                self._borrows.settle(loan)
        return assembled(frames, lent, over, places + [Place(p.index, len(lent) + p.segment, p.offset, p.length) for p in back])

    def _in_segments(self, frames: Frames) -> Frames:
        """A message with its large buffers in segments, where that is possible and worth it."""
        if len(frames) == 1 or self._lending in ("unable", "asked", "declined"):
            return frames
        lent, places = self._lent(frames)
        return assembled(frames, lent, [], places) if places else frames

    def _lent(self, frames: Frames) -> tuple[list[Lent], list[Place]]:
        large = large_ones(frames)
        if sum(view.nbytes for _, view in large) < WORTH or len(frames[0]) > MAX_FRAME_BYTES:
            return [], []
        if self._lending == "unasked":
            self._ask()
        return self._lends.lend(large) if self._lending == "agreed" else ([], [])

    def _ask(self) -> None:
        self._lending = "declined"
        if self._memory.budget:
            with contextlib.suppress(OSError):
                # No descriptor may be free for the proof; frames need none.
                self._say(self._memory.offer())
                self._lending = "asked"

    def received(self, frames: Sequence[memoryview]) -> None:
        if not (frames and len(frames[0]) and frames[0][0] == FIRST_BYTE):
            self._deliver(frames)
            if self._greets and self._receiver.admitted:
                self._greets = False
                self._lending = "unasked"
                self._say(Able())
            return
        if not self._receiver.admitted:
            self.broken("a message about shared memory before the hello")
            return
        try:
            restored = self._act(unmarked(frames[0]), frames[1:])
        except ProcessLookupError as error:
            self.lost(f"its shared memory is gone ({error.strerror})")
        except (WireError, OSError) as error:
            self.broken(str(error))
        else:
            if restored:
                self._deliver(restored)

    def _act(self, message: SharingMessage, behind: Sequence[memoryview]) -> Sequence[memoryview]:
        """Does what the other end says; returns the message that stood behind it, if any. Raises WireError, OSError."""
        match message:
            case Shared():
                return self._restored(message, behind)
            case Released():
                for loan in message.loans:
                    self._lends.released(loan)
            case Adopted():
                for loan in message.loans:
                    self._lends.adopted(loan)
            case Retired():
                for number in message.numbers:
                    self._borrows.retired(number)
            case Offer():
                self._say(Answer(self._borrows.consider(message)[:1024]))
            case Answer() if self._lending == "asked":
                self._lending = "declined" if message.reason else "agreed"
            case Able() if self._lending == "unable" and self._caller is None:
                self._lending = "unasked"
            case _:
                raise WireError(f"{type(message).__name__} out of turn")
        return ()

    def _restored(self, shared: Shared, frames: Sequence[memoryview]) -> Sequence[memoryview]:
        """The message as it was before it was put into segments. Raises WireError, OSError."""
        segments = len(shared.lent) + len(shared.returned)
        if not frames or len(shared.places) > MAX_FRAMES or segments > len(shared.places):
            raise WireError(f"{segments} segments with {len(shared.places)} buffers before {len(frames)} frames")
        views = [self._borrows.borrow(lent) for lent in shared.lent]
        views += [self._lends.taken_back(loan) for loan in shared.returned]
        header, *buffers = frames
        last = -1
        for place in shared.places:
            if place.segment >= segments or not last < place.index <= len(buffers):
                raise WireError(f"buffer {place.index} of segment {place.segment}, which has no place in its message")
            view, end = views[place.segment], place.offset + place.length
            if end > len(view):
                raise WireError(f"bytes {place.offset} to {end} of a segment of {len(view)}")
            buffers.insert(place.index, view[place.offset : end])
            last = place.index
        return [header, *buffers]

    def adopt(self, view: memoryview) -> bool:
        """See ``SharedMemory.adopt``."""
        return self._borrows.adopt(view)

    def retire(self, number: int) -> None:
        """A segment of this end that the other has mapped is gone."""
        self._say(Retired([number]))

    def lost(self, cause: str) -> None:
        self._end(orderly=False)
        self._receiver.lost(cause)

    def refused(self, cause: str) -> None:
        self._end(orderly=False)
        if self._caller is not None:
            self._caller.refused(cause)

    def close(self, linger: float = 0.0) -> None:
        if not self._ended:
            # Nobody would give a segment back any more.
            self._lending = "declined"
            self._leave()
        self._end(orderly=True)
        self._link.close(linger)

    def _end(self, orderly: bool) -> None:
        if not self._ended:
            self._ended, self._lending = True, "declined"
            self._queue.clear()
            self._memory.borrowers.pop(self, None)
            self._lends.end(orderly)
            self._borrows.end()


def large_ones(frames: Frames) -> list[tuple[int, memoryview]]:
    """The buffers of a message that are worth a place in a segment, with their indices."""
    return [(index, memoryview(frame)) for index, frame in enumerate(frames[1:]) if len(frame) > SMALL]


def assembled(frames: Frames, lent: list[Lent], returned: list[int], places: list[Place]) -> Frames:
    """A message whose buffers at ``places`` are not in it."""
    gone = {place.index for place in places}
    rest = [frame for index, frame in enumerate(frames[1:]) if index not in gone]
    return [marked(Shared(lent, returned, sorted(places, key=lambda place: place.index))), frames[0], *rest]
