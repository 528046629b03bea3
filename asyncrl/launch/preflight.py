"""What can be found wrong with files before any process starts: run folder, model, tokenizer, prompts, reward function."""

from pathlib import Path

from asyncrl.config.places import resolve_path
from asyncrl.config.schema import Config
from asyncrl.errors import ConfigError
from asyncrl.launch.inputs import open_prompts, open_tokenizer
from asyncrl.launch.run_folder import check_usable
from asyncrl.rewards.function import check_signature
from asyncrl.rewards.load import load_function
from asyncrl.rewards.rules import check_sources


def preflight(config: Config) -> int:
    """Raise ConfigError or DataError for files that cannot be used; return the prompts that an epoch uses."""
    if config.trainer.default_local_dir:
        check_usable(config, config.trainer.default_local_dir)
    _check_model(config.actor_rollout_ref.model.path)
    tokenizer = open_tokenizer(config)
    stream, validation = open_prompts(config, tokenizer)
    function = config.reward.custom_reward_function
    if function.path is not None:
        check_signature(load_function(resolve_path(function.path), function.name), function.reward_kwargs)
    else:
        check_sources([*stream.data_sources, *(row.data_source for row in validation)])
    return stream.prompts_per_epoch


def _check_model(path: str) -> None:
    folder = Path(resolve_path(path))
    if not (folder / "config.json").is_file():
        raise ConfigError("actor_rollout_ref.model.path", path, "a local folder of a Hugging Face model, with config.json and safetensors")
    if not any(folder.glob("*.safetensors")):
        raise ConfigError("actor_rollout_ref.model.path", path, "its weights must be safetensors files; there are none")
