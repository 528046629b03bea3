"""Any order of sending, keeping, writing, returning and adopting: nobody's bytes ever change under him."""

import asyncio
from typing import Any

import numpy as np
from hypothesis import given, settings, strategies as st
from numpy.typing import NDArray

from tests.unit.runtime.shared_ends import HEADER, End, Ends, connected, settled

SIZES = (262_144, 300_000, 400_000, 500_000)
BUDGET = 3 << 20

Steps = list[tuple[str, int, int]]


class Held:
    """An array at one end, and what must be in it. What was sent is not written to: it may have gone as a frame, uncopied."""

    def __init__(self, end: End, array: NDArray[np.uint8]) -> None:
        self.end, self.array, self.expected = end, array, array.copy()
        self.sent = not array.flags.writeable


class Play:
    """Two ends, everything that is held at them, and what is on its way to each."""

    def __init__(self, ends: Ends) -> None:
        self.ends = ends
        self.held: list[Held] = []
        self.coming: dict[End, list[NDArray[np.uint8]]] = {ends.calls: [], ends.serves: []}
        self.seed = 0

    def other(self, end: End) -> End:
        return self.ends.serves if end is self.ends.calls else self.ends.calls

    def send(self, end: End, array: NDArray[np.uint8]) -> None:
        self.coming[self.other(end)].append(array.copy())
        end.link.send([HEADER, array.data])

    def step(self, act: str, which: int, size: int) -> None:
        end = (self.ends.calls, self.ends.serves)[which % 2]
        held = self.held[which % len(self.held)] if self.held else None
        self.seed += 1
        if act == "send":
            self.send(end, np.full(SIZES[size], self.seed % 251, np.uint8))
        elif act == "allocate":
            array = np.frombuffer(end.memory.allocate(SIZES[size]), np.uint8)
            array[:] = self.seed % 251
            self.send(end, array)
        elif held is None:
            return
        elif act == "write" and not held.sent:
            held.array[:: size + 1] = held.expected[:: size + 1] = self.seed % 251
        elif act == "drop":
            self.held.remove(held)
        elif act == "return":
            self.send(held.end, held.array)
            self.held.remove(held)
        elif act == "resend":
            held.sent = True
            self.send(held.end, held.array[: SIZES[0]])
        elif act == "adopt":
            held.end.memory.adopt(held.array.data)

    def collect(self) -> None:
        """Takes what has arrived, and looks at everything that is held."""
        for end, expected in self.coming.items():
            while end.inbox:
                _, frame = end.inbox.pop(0)
                held = Held(end, np.frombuffer(frame, np.uint8))
                assert (held.array == expected.pop(0)).all()
                self.held.append(held)
        for held in self.held:
            assert (held.array == held.expected).all()


ACTS = st.sampled_from(["send", "send", "allocate", "write", "drop", "drop", "return", "return", "resend", "adopt", "settle", "turn"])


@given(steps=st.lists(st.tuples(ACTS, st.integers(0, 7), st.integers(0, 3)), min_size=10, max_size=60))
@settings(max_examples=25, deadline=None)
def test_nobodys_bytes_change_under_him(steps: Steps) -> None:
    async def run() -> None:
        async with connected(budget=BUDGET) as ends:
            play = Play(ends)
            for act, which, size in steps:
                if act == "settle":
                    await settled()
                elif act == "turn":
                    await asyncio.sleep(0)
                else:
                    play.step(act, which, size)
                play.collect()
            await settled()
            play.collect()
            assert not any(play.coming.values())
            assert ends.calls.broken_reasons == ends.serves.broken_reasons == []
            play.held.clear()
            await settled()
            for end in (ends.calls, ends.serves):
                stats: Any = end.memory.stats()
                assert stats.bytes <= BUDGET
                assert stats.free_segments == stats.segments == stats.created + stats.adopted - stats.dropped - stats.given

    asyncio.run(run())
