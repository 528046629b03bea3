"""Reads a language model as a critic: its backbone, and a head of one output in place of the one over the vocabulary."""

import json
from pathlib import Path
from typing import Any, cast

import torch
from torch import nn
from transformers import AutoConfig, AutoModelForTokenClassification
from transformers.utils import logging

from asyncrl.errors import ConfigError
from asyncrl.training.model import ModelConfig, check_folder


def read_value_model(config: ModelConfig, seed: int) -> tuple[nn.Module, nn.Linear]:
    """The whole model on the device of ``config``, and its head, which is held and computed in float32.

    As verl's critic it is the token classification model of the architecture with one label and no dropout at the head. A folder
    that holds such a head gives it, as a reward model's does; otherwise its weights are drawn as the architecture draws
    them, a normal distribution of deviation ``initializer_range`` and a bias of 0, from ``seed``. Raises ConfigError for a
    folder that cannot be read, and for an architecture without such a model.
    """
    check_folder(config)
    # The report of weights that are new or not used says what is meant.
    level = logging.get_verbosity()
    logging.set_verbosity_error()  # type: ignore[no-untyped-call]
    logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    try:
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            model = _read(config)
    finally:
        logging.set_verbosity(level)
    head = _head(model, config)
    head.float()
    return model.to(config.device), head


def _read(config: ModelConfig) -> nn.Module:
    architecture: Any = AutoConfig.from_pretrained(config.path, local_files_only=True, trust_remote_code=config.trust_remote_code)
    # No labels of a task: the head's width is theirs.
    architecture.num_labels = 1
    architecture.classifier_dropout = architecture.hidden_dropout = 0.0
    auto: Any = AutoModelForTokenClassification
    try:
        return cast(
            nn.Module,
            auto.from_pretrained(
                config.path,
                config=architecture,
                dtype=config.model_dtype,
                local_files_only=True,
                use_safetensors=True,
                trust_remote_code=config.trust_remote_code,
            ),
        )
    except ValueError as error:
        kind = json.loads((Path(config.path) / "config.json").read_text(encoding="utf-8")).get("model_type")
        raise ConfigError("critic.model.path", config.path, f"its architecture, {kind!r}, has no token classification model") from error


def _head(model: nn.Module, config: ModelConfig) -> nn.Linear:
    found = [layer for layer in model.children() if isinstance(layer, nn.Linear) and layer.out_features == 1]
    if len(found) != 1:
        raise ConfigError("critic.model.path", config.path, f"{type(model).__name__} has {len(found)} heads of one output, expected one")
    return found[0]
