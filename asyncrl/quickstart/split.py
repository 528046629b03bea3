"""The split of all pairs into those that may be trained and those that are held out."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

from asyncrl.quickstart.sums import Pair


@dataclass(frozen=True, slots=True)
class Split:
    """Two lists of pairs without a common one. Both orders of a sum, 7+35 and 35+7, lie on the same side.

    Raises ValueError when a pair lies, in either order, on both sides.
    """

    trained: tuple[Pair, ...]
    held_out: tuple[Pair, ...]

    def __post_init__(self) -> None:
        trained = {turned for pair in self.trained for turned in (pair, pair[::-1])}
        shared = [pair for pair in self.held_out if pair in trained]
        if shared:
            raise ValueError(f"{len(shared)} held-out pairs are trained too, in one order or the other: {shared[:5]}")


def split_pairs(pairs: Sequence[Pair], held_out: int) -> Split:
    """Hold out ``held_out`` of ``pairs``, which holds each pair in both orders; both lists keep the order of ``pairs``.

    The choice goes by the SHA-256 of a sum's text, so it depends neither on a seed nor on a library's generator.
    Going down that order, a sum is taken when both its orders still fit. Raises ValueError when the number is not met so:
    there are too few pairs, or one is missing and no sum of a number with itself is left.
    """
    chosen: set[Pair] = set()
    for pair in shuffled([pair for pair in pairs if pair[0] <= pair[1]]):
        orders = {pair, pair[::-1]}
        if len(chosen) + len(orders) <= held_out:
            chosen |= orders
    if len(chosen) != held_out:
        raise ValueError(f"going by hashes with both orders on one side, {len(chosen)} of {len(pairs)} pairs are held out, not {held_out}")
    return Split(tuple(pair for pair in pairs if pair not in chosen), tuple(pair for pair in pairs if pair in chosen))


def shuffled(pairs: Sequence[Pair]) -> list[Pair]:
    """``pairs`` in the order of the SHA-256 of their texts: an order that looks random and is the same everywhere."""
    return sorted(pairs, key=lambda pair: hashlib.sha256(pair_text(pair).encode()).digest())


def pairs_digest(pairs: Sequence[Pair]) -> str:
    """SHA-256, in hexadecimal, of the sorted pairs, one ``LEFT+RIGHT`` a line."""
    return hashlib.sha256("".join(f"{pair_text(pair)}\n" for pair in sorted(pairs)).encode()).hexdigest()


def pair_text(pair: Pair) -> str:
    """A pair as its digest sees it.

    >>> pair_text((7, 35))
    '7+35'
    """
    return f"{pair[0]}+{pair[1]}"
