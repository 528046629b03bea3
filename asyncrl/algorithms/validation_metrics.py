"""What a validation run says about a model, per data source: mean, best, worst and majority of n answers.

An answer belongs to a data source and to a uid, the use of one prompt row; two rows of the same text are two uids. Each
variable, such as ``acc`` or ``reward``, is averaged over the answers of a uid first and over uids then. With n answers of
a uid, by verl's names:

``mean@n``, ``std@n``
    mean and deviation (divided by n) of the answers; no deviation of one answer.
``best@k``, ``worst@k``, each ``/mean`` and ``/std``
    the best and the worst of k answers drawn with replacement, for k = 2, 4, 8 ... below n, and n: mean and deviation over
    the draws. With replacement ``best@n`` is below the plain maximum of the n answers.
``maj@k``
    the value of the answer that most of k drawn ones gave; of a tie the one drawn first. Only where each answer has a vote.
"""

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

CORE_VARIABLES = ("acc", "reward")
"""The first of these that a source has is its core variable."""
CORE_METRICS = ("mean", "maj", "best")
ACCURACY = "acc"
SUCCESS_ONLY = "acc_success_only"

Floats = npt.NDArray[np.float64]
Codes = npt.NDArray[np.int64]
BySource = dict[str, dict[str, dict[str, float]]]
"""source -> variable -> metric -> number."""

_CHUNK = 4_000_000
"""Drawn values held at a time."""


@dataclass(frozen=True, slots=True)
class Bootstrap:
    """How answers are drawn: the same places for every uid of n answers, by a generator of its own."""

    draws: int = 1000
    seed: int = 42

    def places(self, n: int, k: int) -> npt.NDArray[np.int64]:
        """[draws, k]: which of n answers each draw consists of."""
        return np.random.RandomState(self.seed).randint(0, n, size=(self.draws, k)).astype(np.int64)


@dataclass(frozen=True, slots=True)
class Answers:
    """M answers: where each belongs, and what is known of it."""

    sources: Sequence[str]
    uids: Sequence[str]
    variables: Mapping[str, Sequence[float | None]]
    """[M] by name; None where an answer does not have it, which then counts in no mean."""
    votes: Sequence[str | None] | None = None
    """[M]: what the answer says, for the majority."""


def draw_sizes(n: int) -> list[int]:
    """2, 4, 8 ... below n, then n; nothing for a single answer.

    >>> draw_sizes(6)
    [2, 4, 6]
    """
    return [size for size in (2**power for power in range(1, n.bit_length())) if size < n] + ([n] if n > 1 else [])


def best_and_worst(values: Floats, k: int, bootstrap: Bootstrap) -> tuple[tuple[Floats, Floats], tuple[Floats, Floats]]:
    """Mean and deviation over draws of the largest and of the smallest of k: [U, n] -> two pairs of [U]."""
    places = bootstrap.places(values.shape[1], k)
    largest, smallest = [], []
    for span in _spans(len(values), places.size):
        drawn = values[span][:, places]
        largest.append(drawn.max(-1))
        smallest.append(drawn.min(-1))
    return _mean_and_deviation(largest), _mean_and_deviation(smallest)


def majority(values: Floats, votes: Codes, k: int, bootstrap: Bootstrap) -> tuple[Floats, Floats]:
    """Mean and deviation over draws of the value that the majority of k gave; ``values``, ``votes``: [U, n] -> two [U]."""
    places = bootstrap.places(values.shape[1], k)
    won = []
    for span in _spans(len(values), places.size):
        winners = first_of_the_most(votes[span][:, places])
        won.append(np.take_along_axis(values[span][:, places], winners[..., None], -1)[..., 0])
    return _mean_and_deviation(won)


def first_of_the_most(votes: Codes) -> Codes:
    """Where the most frequent vote first stands; of a tie the vote that stands first: [..., k] -> [...].

    ``votes`` are numbers from 0.

    >>> int(first_of_the_most(np.array([2, 0, 0, 2])))
    0
    """
    flat = votes.reshape(-1, votes.shape[-1])
    kinds = int(flat.max()) + 1 if flat.size else 1
    rows = np.arange(len(flat))[:, None] * kinds
    counts = np.bincount((rows + flat).ravel(), minlength=len(flat) * kinds).reshape(len(flat), kinds)
    first: Codes = np.take_along_axis(counts, flat, -1).argmax(-1).reshape(votes.shape[:-1]).astype(np.int64)
    return first


def majority_value(votes: Sequence[str], values: Sequence[float]) -> float:
    """The value of the first answer that gave the most frequent vote.

    >>> majority_value(["A", "B", "B"], [0.0, 1.0, 0.5])
    1.0
    """
    return values[int(first_of_the_most(_codes(votes)))]


def validation_metrics(
    answers: Answers, *, expected: Mapping[tuple[str, str], int] | None = None, bootstrap: Bootstrap | None = None
) -> BySource:
    """All metrics of all variables of all sources.

    ``expected``, answers asked for by (source, uid): where a source knows ``acc``, a missing one counts as 0 and
    ``acc_success_only`` tells of those that came. A metric is averaged over the uids that have as many answers.
    """
    draws = bootstrap or Bootstrap()
    groups = _grouped(answers)
    if expected is not None:
        _fill_accuracy(groups, expected)
    votes = _votes(answers)
    found: BySource = {}
    for source, variables in groups.items():
        for name, by_uid in variables.items():
            metrics = _of_variable(by_uid, {uid: votes.get((source, uid), []) for uid in by_uid}, draws)
            if metrics:
                found.setdefault(source, {})[name] = metrics
    return found


def log_names(found: BySource, turns: Sequence[int] = ()) -> dict[str, float]:
    """The metrics as they are logged: ``val-core/<source>/<variable>/<metric>`` or ``val-aux/...``.

    Core are mean, best and majority of the core variable at its largest n. ``turns`` of all answers become
    ``val-aux/num_turns/{min,max,mean}``.
    """
    named: dict[str, float] = {}
    for source, variables in found.items():
        core = next((name for name in CORE_VARIABLES if name in variables), None)
        for name, metrics in variables.items():
            largest = max(_size(metric) for metric in metrics)
            for metric, value in metrics.items():
                is_core = name == core and metric.startswith(CORE_METRICS) and _size(metric) == largest
                named[f"{'val-core' if is_core else 'val-aux'}/{source}/{name}/{metric}"] = value
    if turns:
        named |= {
            "val-aux/num_turns/min": float(min(turns)),
            "val-aux/num_turns/max": float(max(turns)),
            "val-aux/num_turns/mean": math.fsum(turns) / len(turns),
        }
    return named


def _size(metric: str) -> int:
    return int(metric.partition("@")[2].partition("/")[0])


_Groups = dict[str, dict[str, dict[str, list[float]]]]


def _grouped(answers: Answers) -> _Groups:
    """source -> variable -> uid -> the values that are not None."""
    groups: _Groups = {source: {} for source in dict.fromkeys(answers.sources)}
    for name, values in answers.variables.items():
        for source, uid, value in zip(answers.sources, answers.uids, values, strict=True):
            if value is not None:
                groups[source].setdefault(name, {}).setdefault(uid, []).append(float(value))
    return groups


def _fill_accuracy(groups: _Groups, expected: Mapping[tuple[str, str], int]) -> None:
    for source, variables in groups.items():
        if ACCURACY not in variables:
            continue
        came = variables[ACCURACY]
        variables[SUCCESS_ONLY] = {uid: list(values) for uid, values in came.items()}
        for (of_source, uid), count in expected.items():
            if of_source == source:
                values = came.setdefault(uid, [])
                values += [0.0] * (count - len(values))


def _votes(answers: Answers) -> dict[tuple[str, str], list[str]]:
    votes: dict[tuple[str, str], list[str]] = defaultdict(list)
    for source, uid, vote in zip(answers.sources, answers.uids, answers.votes or [None] * len(answers.uids), strict=True):
        if vote is not None:
            votes[source, uid].append(vote)
    return votes


def _of_variable(by_uid: Mapping[str, list[float]], votes: Mapping[str, list[str]], draws: Bootstrap) -> dict[str, float]:
    """The metrics of one variable of one source: uids of equally many answers are taken together, then all averaged."""
    sizes: dict[int, list[str]] = defaultdict(list)
    for uid, values in by_uid.items():
        sizes[len(values)].append(uid)
    found: dict[str, list[Floats]] = defaultdict(list)
    for n, uids in sizes.items():
        voted = [place for place, uid in enumerate(uids) if len(votes[uid]) == n]
        codes = np.array([_codes(votes[uids[place]]) for place in voted], dtype=np.int64).reshape(len(voted), n)
        numbers = np.array([by_uid[uid] for uid in uids], dtype=np.float64)
        for name, averages in _of_equal_size(numbers, voted, codes, draws).items():
            found[name].append(averages)
    return {name: float(np.concatenate(parts).mean()) for name, parts in found.items()}


def _of_equal_size(values: Floats, voted: Sequence[int], codes: Codes, draws: Bootstrap) -> dict[str, Floats]:
    """Each metric of U uids of n answers: values [U, n], the places of those with votes, and their votes [V, n]."""
    n = values.shape[1]
    found = {f"mean@{n}": values.mean(-1)}
    if n == 1:
        return found
    found[f"std@{n}"] = values.std(-1)
    for k in draw_sizes(n):
        best, worst = best_and_worst(values, k, draws)
        pairs = {"best": best, "worst": worst}
        if voted:
            pairs["maj"] = majority(values[voted], codes, k, draws)
        for name, (mean, deviation) in pairs.items():
            found |= {f"{name}@{k}/mean": mean, f"{name}@{k}/std": deviation}
    return found


def _codes(votes: Sequence[str]) -> Codes:
    known: dict[str, int] = {}
    return np.array([known.setdefault(vote, len(known)) for vote in votes], dtype=np.int64)


def _spans(uids: int, drawn: int) -> list[slice]:
    step = max(1, _CHUNK // drawn)
    return [slice(start, start + step) for start in range(0, uids, step)]


def _mean_and_deviation(parts: Sequence[Floats]) -> tuple[Floats, Floats]:
    drawn = np.concatenate(parts)
    return drawn.mean(-1), drawn.std(-1)
