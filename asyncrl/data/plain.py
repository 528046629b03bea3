"""Values of foreign libraries turned into plain Python, so that they can be written to JSON and MessagePack."""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np


def plain(value: Any) -> Any:
    """``value`` with numpy arrays and scalars, tuples and mappings inside it replaced by lists, numbers and dicts."""
    if isinstance(value, np.ndarray):
        return plain(value.tolist())
    if isinstance(value, np.generic):
        return plain(value.item())
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    return value


def missing(value: Any) -> bool:
    """Whether a cell is empty: None, or the NaN that a table library writes for None."""
    return value is None or (isinstance(value, float) and math.isnan(value))
