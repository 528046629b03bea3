"""The two-sample test of Kolmogorov and Smirnov."""

import math
from collections.abc import Sequence

TERMS = 100
"""Of the series; it converges fast for all but the smallest distances, which get 1."""


def distance(one: Sequence[float], other: Sequence[float]) -> float:
    """The largest difference of the two empirical distributions."""
    first, second = sorted(one), sorted(other)
    places = [0, 0]
    largest = 0.0
    for value in sorted(dict.fromkeys([*first, *second])):
        for number, sample in enumerate((first, second)):
            while places[number] < len(sample) and sample[places[number]] <= value:
                places[number] += 1
        largest = max(largest, abs(places[0] / len(first) - places[1] / len(second)))
    return largest


def p_value(one: Sequence[float], other: Sequence[float]) -> float:
    """How often samples of one distribution are as far apart as these, for large samples of a continuous one; of a discrete one
    not more often.

    The series of Kolmogorov with the argument of Stephens (1970), (sqrt(m) + 0.12 + 0.11 / sqrt(m)) D for m = ab / (a + b).
    """
    root = math.sqrt(len(one) * len(other) / (len(one) + len(other)))
    return tail((root + 0.12 + 0.11 / root) * distance(one, other))


def tail(value: float) -> float:
    """The probability that Kolmogorov's statistic exceeds ``value``: 2 sum over k >= 1 of (-1)^(k-1) exp(-2 k^2 value^2)."""
    if value < 0.2:
        return 1.0
    return 2 * sum((-1.0) ** (term - 1) * math.exp(-2 * term * term * value * value) for term in range(1, TERMS + 1))
