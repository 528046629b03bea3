"""Reads the model that an engine generates with, and what its configuration says about generation."""

import json
from pathlib import Path
from typing import Any, cast

from torch import nn
from transformers import AutoModelForCausalLM
from transformers.utils import logging

from asyncrl.errors import ConfigError


def read_model(folder: str, *, device: str = "cpu", dtype: str = "float32", trust_remote_code: bool = False) -> nn.Module:
    """The causal language model in a local Hugging Face folder.

    Raises ConfigError when there is none, or when it brings code of its own that nobody trusted.
    """
    file = Path(folder) / "config.json"
    if not file.is_file():
        raise ConfigError("actor_rollout_ref.model.path", folder, "must be a folder with a config.json")
    if "auto_map" in json.loads(file.read_text(encoding="utf-8")) and not trust_remote_code:
        raise ConfigError("actor_rollout_ref.model.path", folder, "brings code of its own (auto_map); set trust_remote_code to run it")
    # A progress bar is noise in a log file.
    logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    auto: Any = AutoModelForCausalLM
    model = auto.from_pretrained(folder, dtype=dtype, local_files_only=True, use_safetensors=True, trust_remote_code=trust_remote_code)
    return cast(nn.Module, model.to(device))


def eos_token_ids(model: nn.Module) -> list[int]:
    """End-of-sequence ids: those meant for generation if given, else the model's; one, several or none."""
    ids = cast(Any, model.generation_config).eos_token_id
    if ids is None:
        ids = _text_config(model).eos_token_id
    return [] if ids is None else [ids] if isinstance(ids, int) else list(ids)


def check_length(model: nn.Module, length: int) -> None:
    """Raise ConfigError unless every layer of ``model`` attends over all of ``length`` tokens."""
    values = _text_config(model).to_dict()
    reach = values.get("max_position_embeddings")
    if reach is not None and length > reach:
        raise ConfigError("actor_rollout_ref.rollout.max_model_len", length, f"this model has {reach} positions")
    kinds = set(values.get("layer_types") or ())
    if kinds - {"full_attention", "sliding_attention"}:
        raise ConfigError("actor_rollout_ref.rollout.name", "embedded", f"serves attention layers only; this model has {sorted(kinds)}")
    window = values.get("sliding_window")
    if window is not None and length > window and kinds != {"full_attention"}:
        raise ConfigError("actor_rollout_ref.rollout.max_model_len", length, f"this model looks back {window} tokens at most")


def _text_config(model: nn.Module) -> Any:
    return cast(Any, model.config).get_text_config()
