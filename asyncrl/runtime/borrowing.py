"""``Borrowing``: the segments that the other end of one connection has lent to this one."""

import hmac
import os
from bisect import bisect_right, insort
from collections.abc import Callable
from functools import partial
from typing import Any
from weakref import ref

from asyncrl.errors import WireError
from asyncrl.runtime.memory_file import MemoryFile, Pages, first_bytes, open_descriptor, span_of, watch
from asyncrl.runtime.shared_memory import SharedMemory
from asyncrl.runtime.sharing_messages import Adopted, Lent, Offer, Released, SharingMessage

MOST_MAPPED = 1024
"""Segments of one peer that are mapped here; its pool has fewer."""


class Mapped:
    """A segment of the other end, mapped here. ``loan`` is 0 while it is not on loan to this end, ``watch`` sees the loan end."""

    __slots__ = ("lent", "loan", "pages", "watch")

    def __init__(self, lent: Lent, pages: Pages) -> None:
        self.lent, self.pages = lent, pages
        self.loan = 0
        self.watch: ref[Any] | None = None

    def is_same(self, lent: Lent) -> bool:
        """Whether a later loan describes the segment that is mapped."""
        mine = self.lent
        return (mine.descriptor, mine.inode, mine.size) == (lent.descriptor, lent.inode, lent.size)


class Borrowing:
    """Loans run until nothing here refers to their bytes; ``say`` tells the other end.

    A message that waits to leave may claim the bytes of a loan; ``ended`` is called when nothing else refers to them any more.
    """

    def __init__(self, memory: SharedMemory, say: Callable[[SharingMessage], None], ended: Callable[[], None]) -> None:
        self._memory, self._say, self._ended = memory, say, ended
        self._owner = -1
        self._last_loan = 0
        self._mapped: dict[int, Mapped] = {}
        self._by_address: dict[int, Mapped] = {}
        self._addresses: list[int] = []
        self._on_loan: dict[int, Mapped] = {}
        self._claims: dict[int, int] = {}

    def consider(self, offer: Offer) -> str:
        """Opens what the other end offers as a proof. Returns why nothing can be borrowed, "" when it can. Raises WireError."""
        if self._owner >= 0:
            raise WireError("a second offer of shared memory")
        if not self._memory.budget:
            return "no memory is shared here"
        try:
            descriptor = open_descriptor(offer.process, offer.descriptor, offer.inode, offer.size)
        except (OSError, WireError) as error:
            return str(error)
        seen = first_bytes(descriptor, len(offer.proof))
        os.close(descriptor)
        if not hmac.compare_digest(seen, offer.proof):
            return "the memory file shows another proof"
        self._owner = offer.process
        return ""

    def borrow(self, lent: Lent) -> memoryview:
        """All bytes of a segment, writable. Raises WireError, or OSError when it cannot be opened."""
        if self._owner < 0:
            raise WireError("a segment that was not offered")
        mapped = self._mapped.get(lent.number)
        if lent.loan <= self._last_loan or (mapped is not None and (mapped.loan or not mapped.is_same(lent))):
            raise WireError(f"segment {lent.number} twice, or as another one than before")
        if mapped is None:
            mapped = self._map(lent)
        self._last_loan = mapped.loan = lent.loan
        self._on_loan[lent.loan] = mapped
        view = mapped.pages.view()
        mapped.watch = watch(view, partial(self._memory.leave_word, partial(self._unused, lent.loan)))
        return view

    def _map(self, lent: Lent) -> Mapped:
        if len(self._mapped) >= MOST_MAPPED:
            raise WireError(f"more than {MOST_MAPPED} segments")
        descriptor = open_descriptor(self._owner, lent.descriptor, lent.inode, lent.size)
        try:
            # Most readers do not write: page by page as they are touched costs less than all at once.
            mapped = Mapped(lent, Pages(descriptor, lent.size, present=False))
        finally:
            os.close(descriptor)
        self._mapped[lent.number] = self._by_address[mapped.pages.address] = mapped
        insort(self._addresses, mapped.pages.address)
        return mapped

    def _forget(self, number: int) -> Mapped | None:
        mapped = self._mapped.pop(number, None)
        if mapped is not None:
            del self._by_address[mapped.pages.address]
            self._addresses.remove(mapped.pages.address)
        return mapped

    def _unused(self, loan: int) -> None:
        mapped = self._on_loan.get(loan)
        if mapped is None:
            return
        mapped.watch = None
        if loan in self._claims:
            self._ended()
        else:
            self._close(loan)
            self._say(Released([loan]))

    def _close(self, loan: int) -> None:
        self._on_loan.pop(loan).loan = 0

    def place_of(self, view: memoryview) -> tuple[int, int] | None:
        """The loan that a buffer lies in, and where in its segment; None when it lies elsewhere."""
        if not self._on_loan:
            return None
        span = span_of(view)
        before = bisect_right(self._addresses, span[0])
        mapped = self._by_address[self._addresses[before - 1]] if before else None
        offset = mapped.pages.offset_of(span) if mapped is not None and mapped.loan else None
        return None if mapped is None or offset is None else (mapped.loan, offset)

    def claim(self, loan: int) -> None:
        """A message that waits to leave has bytes of a loan: it does not end before ``settle`` or ``give_back``."""
        self._claims[loan] = self._claims.get(loan, 0) + 1

    def is_unused(self, loan: int) -> bool:
        """Whether nothing but claims refers to the bytes of a loan."""
        return self._on_loan[loan].watch is None

    def give_back(self, loan: int) -> bool:
        """Ends a loan that nothing but one claim refers to; the message with the claim says so. False when something else does."""
        if not self.is_unused(loan) or self._claims[loan] > 1:
            return False
        del self._claims[loan]
        self._close(loan)
        return True

    def settle(self, loan: int) -> None:
        """Ends a claim whose message has copies of the bytes."""
        self._claims[loan] -= 1
        if not self._claims[loan]:
            del self._claims[loan]
            if self.is_unused(loan):
                self._unused(loan)

    def bytes_at(self, loan: int, offset: int, length: int) -> memoryview:
        """Bytes of a loan that is claimed, for a copy: they do not keep it."""
        return self._on_loan[loan].pages.view()[offset : offset + length]

    def adopt(self, view: memoryview) -> bool:
        """See ``SharedMemory.adopt``."""
        place = self.place_of(view)
        if place is None or place[0] in self._claims:
            return False
        loan, _ = place
        mapped = self._on_loan[loan]
        pool, lent = self._memory.pool, mapped.lent
        exporter = mapped.watch() if mapped.watch is not None else None
        if exporter is None:
            return False
        room = pool.reserve(lent.size, to_keep=True)
        if not room:
            return False
        try:
            descriptor = open_descriptor(self._owner, lent.descriptor, lent.inode, lent.size)
        except (WireError, OSError):
            # Its sender has gone meanwhile; the bytes stay readable, and nobody's budget is charged with them.
            pool.unreserve(room)
            return False
        self._close(loan)
        self._forget(lent.number)
        self._memory.keep(pool.adopt(MemoryFile(descriptor, lent.inode, mapped.pages), room), memoryview(exporter))
        self._say(Adopted([loan]))
        return True

    def retired(self, number: int) -> None:
        """The other end has a segment no longer. Raises WireError for one that it has lent."""
        mapped = self._forget(number)
        if mapped is not None and mapped.loan:
            raise WireError(f"segment {number} is retired while it is on loan")

    def end(self) -> None:
        """The connection is over; what is looked at stays readable."""
        self._mapped.clear()
        self._by_address.clear()
        self._addresses.clear()
        self._on_loan.clear()
        self._claims.clear()
