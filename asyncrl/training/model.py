"""Reads a causal language model and cuts it into shards."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from transformers import AutoModelForCausalLM
from transformers.utils import logging

from asyncrl.errors import ConfigError


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelConfig:
    """Where the model is and how it is held."""

    path: str
    """A local folder in Hugging Face's layout, weights as safetensors."""
    trainable: bool = True
    """False: a frozen reference, without optimizer."""
    device: str = "cpu"
    model_dtype: str = "float32"
    """Of the weights that are held and optimized."""
    compute_dtype: str | None = None
    """Of forward and backward; None is that of the weights. Gradients are summed over ranks in float32."""
    fsdp_size: int = -1
    """Ranks that share one copy of the weights: -1 is all."""
    reshard_after_forward: bool = True
    """Give a layer's gathered weights back between forward and backward."""
    enable_gradient_checkpointing: bool = False
    trust_remote_code: bool = False


def make_mesh(config: ModelConfig, world_size: int) -> DeviceMesh:
    """All ranks in a row. Raises ConfigError for a smaller ``fsdp_size``: one copy of the weights is kept."""
    if 0 <= config.fsdp_size < world_size:
        raise ConfigError("fsdp_config.fsdp_size", config.fsdp_size, f"must be -1 or at least the {world_size} ranks")
    return init_device_mesh(config.device, (world_size,), mesh_dim_names=("fsdp",))


def check_folder(config: ModelConfig) -> None:
    """Raises ConfigError when the folder has no configuration, or brings code that nobody trusted."""
    file = Path(config.path) / "config.json"
    if not file.is_file():
        raise ConfigError("model.path", config.path, "must be a folder with a config.json")
    if "auto_map" in json.loads(file.read_text(encoding="utf-8")) and not config.trust_remote_code:
        raise ConfigError("model.path", config.path, "brings code of its own (auto_map); set trust_remote_code to run it")


def read_model(config: ModelConfig) -> nn.Module:
    """The whole model on the device of ``config``. Raises ConfigError for a folder that cannot be read or trusted."""
    check_folder(config)
    # A progress bar is noise in a log file.
    logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    auto: Any = AutoModelForCausalLM
    model = auto.from_pretrained(
        config.path, dtype=config.model_dtype, local_files_only=True, use_safetensors=True, trust_remote_code=config.trust_remote_code
    )
    return cast(nn.Module, model.to(config.device))


def shard_model(model: nn.Module, config: ModelConfig, mesh: DeviceMesh, *, full_precision: nn.Module | None = None) -> nn.Module:
    """Cut the parameters of ``model`` over ``mesh``, in place: each decoder layer is gathered as one, the rest as one.

    The module ``full_precision`` keeps the dtype of its weights in forward and backward.
    """
    if config.enable_gradient_checkpointing:
        cast(Any, model).gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    model.requires_grad_(config.trainable)
    policy = MixedPrecisionPolicy()
    if config.compute_dtype is not None:
        policy = MixedPrecisionPolicy(param_dtype=_dtype(config.compute_dtype), reduce_dtype=torch.float32)
    kinds = frozenset(cast(Any, model)._no_split_modules or ())
    for module in model.modules():
        if type(module).__name__ in kinds:
            fully_shard(module, mesh=mesh, mp_policy=policy, reshard_after_forward=config.reshard_after_forward)
    if full_precision is not None:
        fully_shard(full_precision, mesh=mesh, reshard_after_forward=config.reshard_after_forward)
    fully_shard(model, mesh=mesh, mp_policy=policy, reshard_after_forward=config.reshard_after_forward)
    return model


DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


def _dtype(name: str) -> torch.dtype:
    if name not in DTYPES:
        raise ConfigError("fsdp_config.dtype", name, f"must be one of {', '.join(DTYPES)}")
    return DTYPES[name]
