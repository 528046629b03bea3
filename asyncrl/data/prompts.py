"""A row of a prompt file, and the loading of such files in verl's columns."""

import random
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from asyncrl.data.plain import missing
from asyncrl.data.tables import Place, read_tables
from asyncrl.errors import DataError

Prompt = str | list[dict[str, Any]]
"""A text taken as it is, or a list of chat messages."""


class PromptRow(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One row of the prompt files."""

    prompt: Prompt
    data_source: str
    ground_truth: Any = None
    extra_info: dict[str, Any] = {}
    agent_name: str | None = None
    """The agent loop of this row; None = the configured one."""
    index: int
    """Position of the row in the joined files, from 0."""


def load_prompts(
    files: str | Sequence[str],
    *,
    prompt_key: str = "prompt",
    reward_fn_key: str = "data_source",
    max_samples: int = -1,
    subset_seed: int | None = None,
) -> list[PromptRow]:
    """Read one prompt file or several, in their order.

    ``max_samples`` keeps that many rows, -1 all: the first ones, or with ``subset_seed`` a random subset in file order.
    Raises DataError, naming file and row, for what cannot be used, and when no row is left.
    """
    rows = [
        _row(values, place, index, prompt_key=prompt_key, reward_fn_key=reward_fn_key)
        for index, (place, values) in enumerate(read_tables(files))
    ]
    if 0 <= max_samples < len(rows):
        chosen = range(max_samples) if subset_seed is None else sorted(random.Random(subset_seed).sample(range(len(rows)), max_samples))
        rows = [rows[index] for index in chosen]
    if not rows:
        raise DataError(f"{files}: no prompts (max_samples={max_samples})")
    return rows


def within_length(rows: Sequence[PromptRow], token_length: Callable[[Prompt], int], max_prompt_length: int) -> list[PromptRow]:
    """The rows whose prompt has at most ``max_prompt_length`` tokens. Raises DataError when none is left."""
    kept = [row for row in rows if token_length(row.prompt) <= max_prompt_length]
    if not kept:
        raise DataError(f"each of the {len(rows)} prompts is longer than data.max_prompt_length={max_prompt_length}")
    return kept


def _row(values: dict[str, Any], place: Place, index: int, *, prompt_key: str, reward_fn_key: str) -> PromptRow:
    prompt = _prompt(_cell(values, prompt_key, place), f"{place}: {prompt_key!r}")
    source = _cell(values, reward_fn_key, place)
    if not isinstance(source, str) or not source:
        raise DataError(f"{place}: {reward_fn_key!r} must be a non-empty text, got {source!r}")
    reward_model = _cell(values, "reward_model", place)
    if not isinstance(reward_model, dict) or "ground_truth" not in reward_model:
        raise DataError(f"{place}: 'reward_model' must be an object with 'ground_truth', got {reward_model!r}")
    extra_info, agent_name = values.get("extra_info"), values.get("agent_name")
    if missing(extra_info):
        extra_info = {}
    if not isinstance(extra_info, dict):
        raise DataError(f"{place}: 'extra_info' must be an object or null, got {extra_info!r}")
    if missing(agent_name):
        agent_name = None
    if agent_name is not None and not isinstance(agent_name, str):
        raise DataError(f"{place}: 'agent_name' must be a text or null, got {agent_name!r}")
    return PromptRow(
        prompt=prompt,
        data_source=source,
        ground_truth=reward_model["ground_truth"],
        extra_info=extra_info,
        agent_name=agent_name,
        index=index,
    )


def _cell(values: dict[str, Any], column: str, place: Place) -> Any:
    if column not in values:
        raise DataError(f"{place}: no column {column!r}; it has {', '.join(values) or 'none'}")
    return values[column]


def _prompt(value: Any, place: Place) -> Prompt:
    """A non-empty text, or messages of which each has a role. Absent parts, null in a table, are left out of a message."""
    if isinstance(value, str) and value:
        return value
    if not isinstance(value, list) or not value:
        raise DataError(f"{place} must be a non-empty text or a non-empty list of chat messages, got {value!r}")
    for message in value:
        if not isinstance(message, dict) or not isinstance(message.get("role"), str):
            raise DataError(f"{place}: a chat message must be an object with a 'role', got {message!r}")
        if missing(message.get("content")) and missing(message.get("tool_calls")):
            raise DataError(f"{place}: a chat message must have 'content', got {message!r}")
    return [{name: part for name, part in message.items() if name == "content" or not missing(part)} for message in value]
