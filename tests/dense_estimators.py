"""Every advantage estimator as loops over Python numbers: nothing of asyncrl, nothing padded. A second method.

A row is a dict as in ``tests.dense_reference``, with ``rewards`` (a number a token) and, where an estimator looks at them, values,
old_log_probs, sum_pi_squared and weights (a number a token), baseline and components (a dict). Settings: gamma, lam, norm_by_std,
components (name -> weight). Each estimator gives a number for every trainable token, by (row, place).
"""

import math
import statistics
from collections.abc import Callable, Iterable, Sequence
from itertools import groupby
from typing import Any

Row = dict[str, Any]
Numbers = dict[tuple[int, int], float]


def total(row: Row) -> float:
    """The reward of a row; an answer without tokens has its score all the same."""
    return math.fsum(row["rewards"]) if row["rewards"] else float(row["score"])


def trainable(rows: Sequence[Row]) -> list[tuple[int, int]]:
    return [(number, place) for number, row in enumerate(rows) for place, one in enumerate(row["response_mask"]) if one]


def whitened(numbers: Numbers) -> Numbers:
    mean, variance = statistics.fmean(numbers.values()), statistics.variance(numbers.values())
    return {at: (value - mean) / math.sqrt(variance + 1e-8) for at, value in numbers.items()}


def last_outputs(rows: Sequence[Row]) -> dict[tuple[str, str], int]:
    """The row that speaks for each session of each prompt."""
    ordered = sorted(range(len(rows)), key=lambda number: rows[number]["index"])
    return {(rows[number]["uid"], rows[number]["session"]): number for number in ordered}


def groups(rows: Sequence[Row]) -> list[list[int]]:
    """The rows that vote, prompt by prompt, without prompts of one vote."""
    voters = sorted(last_outputs(rows).values(), key=lambda number: str(rows[number]["uid"]))
    found = [list(group) for _, group in groupby(voters, key=lambda number: rows[number]["uid"])]
    return [group for group in found if len(group) > 1]


def deviation(scores: Sequence[float]) -> float:
    return 0.0 if max(scores) - min(scores) <= 1e-6 * max(map(abs, scores)) else statistics.stdev(scores)


def grpo(scores: Sequence[float], settings: Row) -> list[float]:
    mean, spread = statistics.fmean(scores), deviation(scores)
    if not settings["norm_by_std"]:
        return [score - mean for score in scores]
    return [(score - mean) / (spread + 1e-6) if spread else 0.0 for score in scores]


def passk(scores: Sequence[float], settings: Row) -> list[float]:
    second, best = sorted(scores)[-2:]
    gain = (best - second) / (deviation(scores) + 1e-6 if settings["norm_by_std"] else 1.0)
    return [gain if score == best else 0.0 for score in scores]


def leave_one_out(scores: Sequence[float], settings: Row) -> list[float]:
    return [score - (math.fsum(scores) - score) / (len(scores) - 1) for score in scores]


def centred(scores: Sequence[float], settings: Row) -> list[float]:
    return [score - statistics.fmean(scores) for score in scores]


def spread_votes(rows: Sequence[Row], by_voter: dict[int, float]) -> Numbers:
    """The number of a session's last output on all trainable tokens of its outputs; 0 for who was not heard."""
    last = last_outputs(rows)
    return {at: by_voter.get(last[rows[at[0]]["uid"], rows[at[0]]["session"]], 0.0) for at in trainable(rows)}


def by_group(compare: Callable[[Sequence[float], Row], list[float]]) -> Callable[[Sequence[Row], Row], Numbers]:
    def estimate(rows: Sequence[Row], settings: Row) -> Numbers:
        scores = [total(row) for row in rows]
        return spread_votes(
            rows, {n: a for group in groups(rows) for n, a in zip(group, compare([scores[n] for n in group], settings), strict=True)}
        )

    return estimate


def gdpo(rows: Sequence[Row], settings: Row) -> Numbers:
    total: dict[int, float] = {}
    for group in groups(rows):
        for name, weight in settings["components"].items():
            for number, part in zip(group, grpo([rows[number]["components"][name] for number in group], settings), strict=True):
                total[number] = total.get(number, 0.0) + weight * part
    return whitened(spread_votes(rows, total))


def opo(rows: Sequence[Row], settings: Row) -> Numbers:
    found: dict[int, float] = {}
    for group in groups(rows):
        scores, lengths = [total(rows[n]) for n in group], [sum(rows[n]["response_mask"]) for n in group]
        baseline = math.fsum(score * length for score, length in zip(scores, lengths, strict=True)) / sum(lengths)
        found |= {number: score - baseline for number, score in zip(group, scores, strict=True)}
    return spread_votes(rows, found)


def gpg(rows: Sequence[Row], settings: Row) -> Numbers:
    heard = [total(rows[number]) for group in groups(rows) for number in group]
    factor = len(heard) / max(1, sum(score != 0 for score in heard))
    return {at: factor * value for at, value in by_group(centred)(rows, settings).items()}


def baselined(rows: Sequence[Row], settings: Row) -> Numbers:
    return whitened(by_group(centred)(rows, settings))


def returns(rows: Sequence[Row], gamma: float) -> Numbers:
    found: Numbers = {}
    for number, row in enumerate(rows):
        later = 0.0
        for place in reversed([place for place, one in enumerate(row["response_mask"]) if one]):
            later = found[number, place] = row["rewards"][place] + gamma * later
    return found


def raw_gae(rows: Sequence[Row], settings: Row) -> Numbers:
    found: Numbers = {}
    for number, row in enumerate(rows):
        next_value = running = 0.0
        for place in reversed([place for place, one in enumerate(row["response_mask"]) if one]):
            delta = row["rewards"][place] + settings["gamma"] * next_value - row["values"][place]
            running = found[number, place] = delta + settings["gamma"] * settings["lam"] * running
            next_value = row["values"][place]
    return found


def token_baseline(rows: Sequence[Row], compact: bool) -> Numbers:
    """Both optimal token baselines: a place is a column, or with ``compact`` a number of trainable tokens."""
    gains, found = returns(rows, 1.0), dict.fromkeys(trainable(rows), 0.0)
    place_of, weight_of = {}, {}
    for number, row in enumerate(rows):
        steps = [place for place, one in enumerate(row["response_mask"]) if one]
        running = 0.0
        for count, place in enumerate(steps):
            energy = 1 - 2 * math.exp(row["old_log_probs"][place]) + row["sum_pi_squared"][place]
            running += energy * row["weights"][place] ** 2
            place_of[number, place], weight_of[number, place] = count if compact else place, running
    for group in groups(rows):
        reach = {n: max((at for (row, _), at in place_of.items() if row == n), default=-1) for n in group}
        for number, place in found:
            if rows[number]["uid"] != rows[group[0]]["uid"]:
                continue
            here = place_of[number, place]
            peers = [at for at, other in place_of.items() if at[0] in group and other == here]
            alone = sum(far >= here for far in reach.values()) == 1
            weight = math.fsum(weight_of[at] for at in peers) + 1e-8
            baseline = 0.0 if alone else math.fsum(gains[at] * weight_of[at] for at in peers) / weight
            found[number, place] = gains[number, place] - baseline
    return found


ESTIMATORS: dict[str, Callable[[Sequence[Row], Row], Numbers]] = {
    "gae": lambda rows, settings: whitened(raw_gae(rows, settings)),
    "grpo": by_group(grpo),
    "grpo_vectorized": by_group(grpo),
    "grpo_passk": by_group(passk),
    "gdpo": gdpo,
    "rloo": by_group(leave_one_out),
    "rloo_vectorized": by_group(leave_one_out),
    "reinforce_plus_plus": lambda rows, settings: whitened(returns(rows, settings["gamma"])),
    "reinforce_plus_plus_baseline": baselined,
    "remax": lambda rows, settings: {at: gain - rows[at[0]]["baseline"] for at, gain in returns(rows, 1.0).items()},
    "opo": opo,
    "gpg": gpg,
    "optimal_token_baseline": lambda rows, settings: token_baseline(rows, compact=False),
    "tir_optimal_token_baseline": lambda rows, settings: token_baseline(rows, compact=True),
}


def dense_returns(name: str, rows: Sequence[Row], settings: Row, advantages: Numbers) -> Numbers:
    """What each estimator measures from."""
    if name == "gae":
        return {at: value + rows[at[0]]["values"][at[1]] for at, value in raw_gae(rows, settings).items()}
    if name in ("reinforce_plus_plus", "remax", "optimal_token_baseline", "tir_optimal_token_baseline"):
        return returns(rows, settings["gamma"] if name == "reinforce_plus_plus" else 1.0)
    return advantages


def as_lists(rows: Sequence[Row], numbers: Numbers) -> list[list[float]]:
    """The numbers row by row, 0 where nothing is trained."""
    return [[numbers.get((number, place), 0.0) for place in range(len(row["response_mask"]))] for number, row in enumerate(rows)]


def token_rewards(row: Row, penalty: Iterable[float]) -> list[float]:
    """The score at the last trainable token, less a penalty on each trainable one."""
    last = max((place for place, one in enumerate(row["response_mask"]) if one), default=len(row["response_mask"]) - 1)
    return [
        (row["score"] if place == last else 0.0) - cost * one
        for place, (one, cost) in enumerate(zip(row["response_mask"], penalty, strict=True))
    ]
