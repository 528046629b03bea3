"""Notes every judged trajectory in a file; right is whoever has session number 0."""

import json
from typing import Any


def compute_score(data_source: str, solution_str: str, ground_truth: Any, extra_info: dict[str, Any], file: str = "") -> dict[str, float]:
    """1 for session 0, else 0."""
    key = extra_info["trajectory_key"]
    with open(file, "a") as notes:
        notes.write(json.dumps({"key": key}) + "\n")
    right = float(key.rsplit("_", 2)[1] == "0")
    return {"score": right, "acc": right}
