"""The quickstart's reward, and two control rewards that must not teach it: one reversed, one blind.

All three report the truth as ``acc``, so that a control's accuracy is that of the sums and not that of its score.
"""

import hashlib
from typing import Any

from asyncrl.quickstart.sums import EOS_TOKEN

Score = dict[str, float]


def compute_score(data_source: str, solution_str: str, ground_truth: str, extra_info: dict[str, Any] | None = None) -> Score:
    """1 when the text up to the end-of-sequence token is the right sum, else 0.

    >>> compute_score("add1_train", "7<eos>", "7")
    {'score': 1.0, 'acc': 1.0}
    >>> compute_score("add1_train", "77", "7")
    {'score': 0.0, 'acc': 0.0}
    """
    right = float(is_right(solution_str, ground_truth))
    return {"score": right, "acc": right}


def reversed_score(data_source: str, solution_str: str, ground_truth: str, extra_info: dict[str, Any] | None = None) -> Score:
    """A control: 1 minus the right score, so that training must make the model worse."""
    right = float(is_right(solution_str, ground_truth))
    return {"score": 1.0 - right, "acc": right}


def coin_score(data_source: str, solution_str: str, ground_truth: str, extra_info: dict[str, Any] | None = None, *, seed: int = 0) -> Score:
    """A control: a coin thrown by the seed and the name of the trajectory, blind to the question and the answer.

    Raises ValueError when ``extra_info`` holds no ``trajectory_key``, the name that an agent worker puts there.
    """
    key = (extra_info or {}).get("trajectory_key")
    if not key:
        raise ValueError("coin_score needs extra_info['trajectory_key']: it throws one coin for each trajectory")
    coin = hashlib.blake2b(f"{seed} {key}".encode(), digest_size=1).digest()[0] & 1
    return {"score": float(coin), "acc": float(is_right(solution_str, ground_truth))}


def is_right(solution: str, ground_truth: str) -> bool:
    """Whether the text before the first end-of-sequence token is exactly the right answer."""
    return solution.split(EOS_TOKEN, 1)[0] == ground_truth
