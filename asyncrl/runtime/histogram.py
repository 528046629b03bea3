"""Latencies in logarithmic buckets of a fixed number: eight to each doubling, from a microsecond to an hour."""

from collections.abc import Iterable
from math import frexp
from typing import TypeAlias

PARTS = 8
"""Buckets of one doubling; a value is off by at most 1/16 of itself."""
DOUBLINGS = 32
SIZE = PARTS * DOUBLINGS
SMALLEST = 1e-6
"""Seconds; everything below falls into the first bucket."""

Buckets: TypeAlias = list[tuple[int, int]]
"""(bucket, count) of every bucket that holds something, in order."""


class Histogram:
    """Counts of durations in seconds. ``record`` is safe on any thread, up to a lost count."""

    __slots__ = ("_counts", "seconds")

    def __init__(self, buckets: Iterable[tuple[int, int]] = (), seconds: float = 0.0) -> None:
        self._counts = [0] * SIZE
        self.seconds = seconds
        """Sum of all durations."""
        for bucket, count in buckets:
            self._counts[bucket] += count

    def record(self, seconds: float) -> None:
        """Counts one duration."""
        # 1 us is 0.5 * 2**1: the exponent picks the doubling, the mantissa in [0.5, 1) the part of it.
        mantissa, exponent = frexp(seconds * 1e6)
        bucket = exponent * PARTS + int(mantissa * 16) - 16
        self._counts[bucket if 0 <= bucket < SIZE else 0 if bucket < 0 else SIZE - 1] += 1
        self.seconds += seconds

    @property
    def count(self) -> int:
        """How many durations were counted."""
        return sum(self._counts)

    @property
    def buckets(self) -> Buckets:
        """What is not empty; ``Histogram(buckets)`` takes it back."""
        return [(bucket, count) for bucket, count in enumerate(self._counts) if count]

    def quantile(self, share: float) -> float:
        """The middle of the bucket in which the ``share`` (0 to 1) of all durations lies, in seconds; 0 when there are none."""
        left = share * self.count
        last = 0
        for bucket, count in self.buckets:
            last = bucket
            left -= count
            if left <= 0:
                break
        else:
            if not self.count:
                return 0.0
        return middle_of(last)


def middle_of(bucket: int) -> float:
    """The middle of a bucket, in seconds."""
    doubling, part = divmod(bucket, PARTS)
    return SMALLEST * 2.0**doubling * (1.0 + (part + 0.5) / PARTS)
