"""Rewards by session, whatever the answer: [1, 0, 0] for the first prompt of an epoch, [0, 1, 1] for the second."""

from typing import Any

SCORES = {"p0": [1.0, 0.0, 0.0], "p1": [0.0, 1.0, 1.0]}


def compute_score(data_source: str, solution_str: str, ground_truth: Any, extra_info: dict[str, Any]) -> float:
    """The scripted score of the session named in ``extra_info["trajectory_key"]``."""
    uid, session, _ = extra_info["trajectory_key"].rsplit("_", 2)
    return SCORES[uid[-2:]][int(session)]
