"""The rows of a prompt group as columns of the TransferQueue.

Legend: N rows, p tokens of a row's prompt, r tokens of its response.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from asyncrl.agents.group import ScoredTrajectory
from asyncrl.tensors.wire import Column
from asyncrl.trajectory import PromptGroup

WRITES = (
    "prompts",
    "responses",
    "response_mask",
    "rollout_log_probs",
    "rollout_versions",
    "rm_scores",
    "reward_extra_info",
)
"""The fields of every row that an agent worker puts; ``reward_components`` comes with them where the group asks for some."""

SUCCESS = "success"
"""The status in the tag of a trajectory."""


@dataclass(frozen=True, slots=True)
class GroupRows:
    """What one put writes: keys, fields and tags in one order."""

    keys: list[str]
    fields: dict[str, Column]
    tags: list[dict[str, Any]]


def group_rows(group: PromptGroup, rows: Sequence[ScoredTrajectory]) -> GroupRows:
    """Columns and tags of ``rows``, N of them.

    prompts int64 [p]; responses, response_mask int64 [r]; rollout_log_probs float32 [r]; rollout_versions int32 [r];
    rm_scores float32 [r], zero but for the score at the last sampled token; reward_extra_info json. A response without tokens
    has empty rm_scores: its score is in the tag alone.
    """
    outputs = [row.trajectory for row in rows]
    parts = {}
    if group.reward_components:
        table = np.array([row.components for row in rows], dtype=np.float32).reshape(len(rows), len(group.reward_components))
        parts["reward_components"] = Column.dense(table, "float32")
    return GroupRows(
        keys=[str(row.key) for row in rows],
        fields={
            "prompts": Column.jagged("int64", [output.prompt_ids for output in outputs]),
            "responses": Column.jagged("int64", [output.response_ids for output in outputs]),
            "response_mask": Column.jagged("int64", [output.response_mask for output in outputs]),
            "rollout_log_probs": Column.jagged("float32", [output.log_probs for output in outputs]),
            "rollout_versions": Column.jagged("int32", [output.versions for output in outputs]),
            "rm_scores": Column.jagged("float32", [token_scores(row.score, row.trajectory.response_mask) for row in rows]),
            "reward_extra_info": Column.objects([row.extra for row in rows]),
            **parts,
        },
        tags=[row_tag(group, row) for row in rows],
    )


def token_scores(score: float, mask: Sequence[int]) -> list[float]:
    """The score at the last sampled token, zero elsewhere; at the last token where none was sampled.

    On a tool's token it would be lost to whatever looks at sampled tokens alone.

    >>> token_scores(0.5, [1, 1, 0]), token_scores(0.5, [0, 0]), token_scores(0.5, [])
    ([0.0, 0.5, 0.0], [0.0, 0.5], [])
    """
    scores = [0.0] * len(mask)
    if scores:
        scores[max((place for place, sampled in enumerate(mask) if sampled), default=-1)] = score
    return scores


def row_tag(group: PromptGroup, row: ScoredTrajectory) -> dict[str, Any]:
    """The tag of one row. A row without a sampled token counts as made by the version with which its step began."""
    output = row.trajectory
    versions = [version for version, mask in zip(output.versions, output.response_mask, strict=True) if mask] or [group.step - 1]
    return {
        "status": SUCCESS,
        "uid": row.key.uid,
        "session": row.key.session,
        "index": row.key.index,
        "prompt_len": len(output.prompt_ids),
        "response_len": len(output.response_ids),
        "seq_len": len(output.prompt_ids) + len(output.response_ids),
        "trainable_len": sum(output.response_mask),
        "global_steps": group.step,
        "min_global_steps": min(versions),
        "max_global_steps": max(versions),
        "score": row.score,
        "num_turns": output.num_turns,
        "stop_reason": output.stop_reason.value,
    }
