"""Exact match: the answer is the right text, but for white space around it."""

from typing import Any


def exact_match(data_source: str, solution_str: str, ground_truth: Any, extra_info: dict[str, Any] | None = None) -> dict[str, float]:
    """1 when the stripped answer equals the stripped right text, else 0.

    >>> exact_match("exact_match", " 42\\n", 42)
    {'score': 1.0, 'acc': 1.0}
    """
    right = float(solution_str.strip() == str(ground_truth).strip())
    return {"score": right, "acc": right}
