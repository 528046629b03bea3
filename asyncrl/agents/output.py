"""What an agent loop may return: an output that can be a row."""

from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from asyncrl.errors import DataError
from asyncrl.trajectory import StopReason, Trajectory

LARGEST = 2**31 - 1
"""The largest token id, version and number of turns: versions are stored in 32 bits."""


def checked_output(output: Trajectory, name: str, max_tokens: int) -> Trajectory:
    """``output`` with plain numbers, whatever kind of numbers the loop put in.

    Raises DataError, which begins with ``name``, for an output that cannot be a row: no prompt, lists of unequal length, too many
    tokens, or an element that is not what its list holds.
    """
    lengths = [len(output.response_ids), len(output.response_mask), len(output.log_probs), len(output.versions)]
    if len(set(lengths)) != 1:
        raise DataError(f"{name}: response_ids, response_mask, log_probs and versions have lengths {lengths}, expected equal ones")
    if not len(output.prompt_ids):
        raise DataError(f"{name}: prompt_ids is empty")
    if lengths[0] > max_tokens:
        raise DataError(f"{name}: {lengths[0]} response tokens, at most {max_tokens} are allowed")
    mask = _integers(output.response_mask, f"{name}: response_mask", 0, 1)
    versions = _integers(output.versions, f"{name}: versions", -1, LARGEST)
    if (versions[mask == 1] < 0).any():
        raise DataError(f"{name}: versions has -1 where response_mask is 1, expected the version that sampled the token")
    return msgspec.structs.replace(
        output,
        prompt_ids=_integers(output.prompt_ids, f"{name}: prompt_ids", 0, LARGEST).tolist(),
        response_ids=_integers(output.response_ids, f"{name}: response_ids", 0, LARGEST).tolist(),
        response_mask=mask.tolist(),
        log_probs=_log_probs(output.log_probs, f"{name}: log_probs").tolist(),
        versions=versions.tolist(),
        num_turns=int(_integers([output.num_turns], f"{name}: num_turns", 0, LARGEST)[0]),
        stop_reason=_stop_reason(output.stop_reason, f"{name}: stop_reason"),
    )


def _integers(values: Sequence[Any], name: str, low: int, high: int) -> NDArray[np.int64]:
    """int64 [n]."""
    array = _array(values, name, "biu", "integers")
    if array.size and not low <= int(array.min()) <= int(array.max()) <= high:
        raise DataError(f"{name} has values from {array.min()} to {array.max()}, expected {low} to {high}")
    return array.astype(np.int64)


def _log_probs(values: Sequence[Any], name: str) -> NDArray[np.float64]:
    """float64 [n], within what a float32 holds; a NaN stays one."""
    array = _array(values, name, "iuf", "numbers")
    if (np.abs(array) > np.finfo(np.float32).max).any():
        raise DataError(f"{name} has values from {np.nanmin(array)} to {np.nanmax(array)}, expected finite ones")
    return array.astype(np.float64)


def _array(values: Sequence[Any], name: str, kinds: str, expected: str) -> NDArray[Any]:
    """An array [n] of one of these kinds of numpy."""
    try:
        array = np.asarray(values)
    except (TypeError, ValueError, OverflowError) as error:
        raise DataError(f"{name} is no list of {expected}: {error}") from error
    if array.shape == (0,):
        return array.astype(np.int64)
    if array.ndim != 1 or array.dtype.kind not in kinds:
        kinds_seen = sorted({type(value).__name__ for value in values})
        raise DataError(f"{name} holds {', '.join(kinds_seen)}, expected {expected}")
    return array


def _stop_reason(value: str, name: str) -> StopReason:
    try:
        return StopReason(value)
    except ValueError:
        raise DataError(f"{name} is {value!r}, expected one of {', '.join(StopReason)}") from None
