"""The two tasks that ship: which pairs warm the start weights up, which ones judge them, and what goes into which file."""

from dataclasses import dataclass
from pathlib import Path

from asyncrl.quickstart.assets import ADD1, ADD2, HELD_OUT_FILE, PROBE_FILE, PROMPTS_FILE, TRAIN_FILE
from asyncrl.quickstart.split import Split, shuffled, split_pairs
from asyncrl.quickstart.sums import Pair, Row, Sums

PROBED = 512
"""Prompts of each validation file of the two-digit task."""


@dataclass(frozen=True, slots=True)
class Task:
    """Everything that the build script must know about one task."""

    name: str
    folder: Path
    """Where its files ship."""
    sums: Sums
    seed: int
    """Of start weights and warm-up."""
    lowest: float
    highest: float
    """The greedy accuracy of the start weights on ``judged`` lies between these two."""
    split: Split
    """The warm-up and the training prompts draw from ``split.trained`` only."""
    judged: tuple[Pair, ...]
    """The pairs whose accuracy stops the warm-up."""
    prompt_files: dict[str, list[Row]]
    """Rows by file name."""


def one_digit() -> Task:
    """All hundred one-digit sums, trained and judged: accuracy on them is training-set accuracy."""
    sums = Sums(digits=1)
    pairs = tuple(sums.pairs)
    rows = [sums.row(pair, "add1_train") for pair in pairs]
    return Task("add1", ADD1, sums, 1, 0.30, 0.40, Split(pairs, ()), pairs, {PROMPTS_FILE: rows})


def two_digits() -> Task:
    """The ten thousand two-digit sums, 2,000 of them held out of warm-up and training.

    The validation files hold 512 of the held-out and 512 of the trained pairs.
    """
    sums = Sums(digits=2)
    split = split_pairs(sums.pairs, held_out=2_000)
    judged, probe = _probe(split.held_out), _probe(split.trained)
    files = {
        TRAIN_FILE: [sums.row(pair, "add2_train") for pair in split.trained],
        PROBE_FILE: [sums.row(pair, "add2_train") for pair in probe],
        HELD_OUT_FILE: [sums.row(pair, "add2_heldout") for pair in judged],
    }
    return Task("add2", ADD2, sums, 2, 0.32, 0.37, split, judged, files)


TASKS = {"add1": one_digit, "add2": two_digits}


def _probe(pairs: tuple[Pair, ...]) -> tuple[Pair, ...]:
    return tuple(sorted(shuffled(pairs)[-PROBED:]))
