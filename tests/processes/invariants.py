"""What must hold in every step of a run of the quickstart, read from its ``metrics.jsonl``."""

from typing import Any

PROMPTS, ROWS = 32, 512
"""Of a step; 16 sessions each."""


def training_steps(records: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The records of steps that trained."""
    return [record for record in records if "training/rows_trained" in record]


def accuracies(records: list[dict[str, Any]]) -> list[float]:
    """Greedy accuracy at each validation, in order."""
    name = "val-core/add1_train/acc/mean@1"
    return [record[name] for record in records if name in record]


def check_invariants(records: list[dict[str, Any]]) -> None:
    """Assert, for every step of a sync run: rollout and trainer agree, nothing is stale, nothing is lost, the clip is exercised."""
    for record in training_steps(records):
        step = record["step"]
        assert record["training/rollout_probs_diff_max"] <= 1e-4, step
        assert record["training/rollout_version/min"] == record["training/rollout_version/max"] == step - 1
        assert record["training/off_policy/eff_sample_size"] >= 1 - 1e-6, step
        assert record["training/prompts/in_flight"] == 0, step
    _check_learning(records)


def check_async_invariants(records: list[dict[str, Any]], *, threshold: int = 8, lookahead: int = 1) -> None:
    """Assert, for every step of an async run: staleness is bounded and there, what is off policy is told, and learning is as in sync."""
    steps = training_steps(records)
    total = len(steps) * PROMPTS
    worst = [record["training/off_policy/trajectory_staleness_worst/max"] for record in steps]
    assert 1 <= max(worst) <= threshold - 1
    for record in steps:
        step = record["step"]
        assert step - threshold <= record["training/rollout_version/min"] <= record["training/rollout_version/max"] <= step - 1
        assert 0 < record["training/off_policy/eff_sample_size"] <= 1, step
        assert (record["training/rollout_probs_diff_max"] > 1e-4) == (record["training/off_policy/eff_sample_size"] < 1 - 1e-6), step
        assert record["training/prompts/in_flight"] <= lookahead * PROMPTS, step
        assert record["training/prompts/trained"] == step * PROMPTS
        assert record["training/prompts/dropped"] == 0, step
        assert record["training/issued_response_length/mean"] == record["response_length/mean"], step
    assert steps[-1]["training/prompts/issued"] == total
    assert steps[-1]["training/prompts/in_flight"] == 0
    _check_learning(records)


def _check_learning(records: list[dict[str, Any]]) -> None:
    steps = training_steps(records)
    digests = [record["training/weight_digest"] for record in steps]
    for record in steps:
        step = record["step"]
        assert record["training/rows_trained"] == ROWS, step
        kl, clipped = record["actor/by_update/ppo_kl"], record["actor/by_update/pg_clipfrac"]
        assert len(kl) == len(clipped) == 2
        assert abs(kl[0]) <= 1e-6 < abs(kl[1]), (step, kl)
        assert clipped[0] <= 1e-6, (step, clipped)
        # In the first mini-batch log_probs are old_log_probs, so its KL to the reference is that of old_log_probs.
        assert (record["actor/by_update/kl_loss"][0] > 0) == (step > 1), step
        assert record["training/weights_changed"] == 1.0, step
        assert record["perf/trainer_wait_s"] <= record["timing_s/gen"] + 1e-6, step
        assert 0 <= record["perf/engine_paused_s/max"] <= record["perf/engine_wait_s/max"], step
    assert len(set(digests)) == len(digests)
    exercised = [record["actor/by_update/pg_clipfrac"][1] > 0 for record in steps]
    assert sum(exercised) >= 0.9 * len(exercised)
