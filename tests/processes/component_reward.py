"""A reward of parts that differ from answer to answer, whatever a model says."""


def compute_score(data_source: str, solution_str: str, ground_truth: object, extra_info: dict[str, object]) -> dict[str, float]:
    spread = sum(map(ord, solution_str))
    return {"score": spread % 3 / 2, "right": float(spread % 2), "brief": 1 / (1 + len(solution_str))}
