"""The Protocol of a reward, and how what a reward function returned becomes a score."""

import asyncio
import math
from collections.abc import Mapping, Sequence
from typing import Any, Protocol, SupportsFloat

import numpy as np

from asyncrl.trajectory import RewardItem, RewardResult

SCORE_NAMES = ("score", "reward")
"""Where a dict holds its score; the first that is present counts, whatever its value."""


class Reward(Protocol):
    """Judges answers."""

    async def score(self, item: RewardItem) -> RewardResult:
        """The score of one answer, or the reason why there is none. Raises nothing but CancelledError."""
        ...


async def score_all(reward: Reward, items: Sequence[RewardItem]) -> list[RewardResult]:
    """Judge some answers at once; one result for each, in their order."""
    return list(await asyncio.gather(*(reward.score(item) for item in items)))


def normalise(returned: Any) -> RewardResult:
    """The result of what a reward function returned: a number, or a dict with ``score`` (or ``reward``) and more.

    A plain number is also kept as ``acc``. No number, NaN, infinity or a wrong type is an error, never a score.

    >>> normalise({"score": 0.0, "reward": 1.0})
    RewardResult(score=0.0, extra={'reward': 1.0}, error='')
    >>> normalise(True)
    RewardResult(score=1.0, extra={'acc': 1.0}, error='')
    >>> normalise(None).error
    'the reward function returned None, expected a number or a dict with a score'
    """
    try:
        if not isinstance(returned, Mapping):
            score = number(returned, "the reward function returned")
            return RewardResult(score=score, extra={"acc": score})
        name = next((name for name in SCORE_NAMES if name in returned), None)
        if name is None:
            raise TypeError(f"the reward function returned a dict without 'score': {list(returned)}")
        score = number(returned[name], f"the reward function returned a dict whose {name!r} is")
        return RewardResult(score=score, extra={str(key): json_value(value) for key, value in returned.items() if key != name})
    except (TypeError, ValueError) as error:
        return RewardResult(error=str(error))


def number(value: Any, what: str) -> float:
    """``value`` as a float: Python and numpy numbers, booleans, arrays and tensors without dimensions.

    Raises TypeError for anything else, ValueError for NaN and infinity; ``what`` opens the message.
    """
    wrong = TypeError(f"{what} {value!r:.80}, expected a number or a dict with a score")
    if isinstance(value, str | bytes | np.complexfloating) or not isinstance(value, SupportsFloat):
        raise wrong
    if isinstance(value, np.ndarray) and value.ndim:
        raise wrong
    try:
        score = float(value)
    except (TypeError, ValueError, OverflowError, RuntimeError) as error:
        raise wrong from error
    if not math.isfinite(score):
        raise ValueError(f"{what} {score}, expected a finite number")
    return score


def json_value(value: Any) -> Any:
    """``value`` as JSON knows it: numpy arrays and scalars, tuples and mappings become lists, numbers and dicts.

    Raises TypeError for a value that JSON cannot hold.
    """
    if value is None or isinstance(value, bool | int | float | str):
        return value.item() if isinstance(value, np.generic) else value
    if isinstance(value, np.ndarray | np.generic):
        return json_value(value.tolist())
    if isinstance(value, Mapping):
        return {str(key): json_value(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [json_value(item) for item in value]
    raise TypeError(f"the reward function returned a {type(value).__name__}, which JSON cannot hold: {value!r:.80}")
