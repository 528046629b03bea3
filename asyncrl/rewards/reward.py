"""The Protocol of a reward, and how what a reward function returned becomes a score."""

import asyncio
import math
from collections.abc import Mapping, Sequence
from typing import Any, Protocol, SupportsFloat

import numpy as np

from asyncrl.errors import RewardError
from asyncrl.trajectory import RewardItem, RewardResult

SCORE_NAMES = ("score", "reward")
"""Where a dict holds its score; the first that is present counts, whatever its value."""
MOST_DEPTH = 32
"""Lists and dicts within one another in a further value."""
INTEGERS = range(-(2**63), 2**64)
"""What a message between processes can carry."""


class Reward(Protocol):
    """Judges answers."""

    async def score(self, item: RewardItem) -> RewardResult:
        """The score of one answer, or the reason why there is none. Raises nothing but CancelledError."""
        ...


async def score_all(reward: Reward, items: Sequence[RewardItem]) -> list[RewardResult]:
    """Judge some answers at once; one result for each, in their order. One that is cancelled by nobody but itself has failed."""
    # A cancel from outside reaches all of them and passes through, as without return_exceptions.
    ended = await asyncio.gather(*(reward.score(item) for item in items), return_exceptions=True)
    return [failed(result) if isinstance(result, BaseException) else result for result in ended]


def failed(error: BaseException) -> RewardResult:
    """The result of a reward that raised; of a RewardError the text alone."""
    try:
        text = str(error)
    except Exception as broken:  # the error's own class is the user's too
        text = f"its text cannot be had: {type(broken).__name__}"
    text = text if isinstance(error, RewardError) else f"{type(error).__name__}: {text}"
    return RewardResult(error=text.encode(errors="backslashreplace").decode())


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
        return _result(returned)
    except Exception as error:  # of our own checks, or of what the function returned
        return failed(error)


def _result(returned: Any) -> RewardResult:
    if not isinstance(returned, Mapping):
        score = number(returned, "the reward function returned")
        return RewardResult(score=score, extra={"acc": score})
    name = next((name for name in SCORE_NAMES if name in returned), None)
    if name is None:
        raise RewardError(f"the reward function returned a dict without 'score': {list(returned)}")
    score = number(returned[name], f"the reward function returned a dict whose {name!r} is")
    return RewardResult(score=score, extra={_text(str(key)): json_value(value) for key, value in returned.items() if key != name})


def number(value: Any, what: str) -> float:
    """``value`` as a float: Python and numpy numbers, booleans, arrays and tensors without dimensions.

    Raises RewardError for anything else, also for NaN and infinity; ``what`` opens the message.
    """
    wrong = RewardError(f"{what} {value!r:.80}, expected a number or a dict with a score")
    if isinstance(value, str | bytes | np.complexfloating) or not isinstance(value, SupportsFloat):
        raise wrong
    if isinstance(value, np.ndarray) and value.ndim:
        raise wrong
    try:
        score = float(value)
    except Exception as error:  # the number's own class may be the user's
        raise wrong from error
    if not math.isfinite(score):
        raise RewardError(f"{what} {score}, expected a finite number")
    return score


def json_value(value: Any, depth: int = 0) -> Any:
    """``value`` as JSON knows it: numpy arrays and scalars, tuples and mappings become lists, numbers and dicts.

    Subclasses of plain types become plain. Raises RewardError for a value that JSON, or a message between processes, cannot hold.
    """
    if depth > MOST_DEPTH:
        raise RewardError(f"the reward function returned a value nested more than {MOST_DEPTH} deep, or one that contains itself")
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int):
        return _integer(value)
    if isinstance(value, float):
        return float.__float__(value)
    if isinstance(value, str):
        return _text(value)
    if isinstance(value, np.ndarray | np.generic):
        return _plain_array(value, depth)
    if isinstance(value, Mapping):
        return {_text(str(key)): json_value(item, depth + 1) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [json_value(item, depth + 1) for item in value]
    raise RewardError(f"the reward function returned a {type(value).__name__}, which JSON cannot hold: {value!r:.80}")


def _plain_array(value: "np.ndarray[Any, Any] | np.generic", depth: int) -> Any:
    plain = value.tolist()
    if isinstance(plain, np.generic):  # a long double has no Python number
        raise RewardError(f"the reward function returned a {type(plain).__name__}, which JSON cannot hold")
    return json_value(plain, depth + 1)


def _integer(value: int) -> int:
    plain = int.__int__(value)
    if plain not in INTEGERS:
        raise RewardError(f"the reward function returned an integer of {plain.bit_length()} bits, allowed: {INTEGERS[0]} to {INTEGERS[-1]}")
    return plain


def _text(value: str) -> str:
    plain = str.__str__(value)
    try:
        plain.encode()
    except UnicodeEncodeError:
        raise RewardError(f"the reward function returned a text that has no UTF-8 form: {plain!r:.80}") from None
    return plain
