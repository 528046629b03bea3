"""What can be found wrong with files before any process starts: run folder, models, tokenizer, prompts, functions of the user."""

import json
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
    _check_model("actor_rollout_ref.model.path", config.actor_rollout_ref.model.path)
    if config.need_critic and config.critic.model.path is not None:
        _check_model("critic.model.path", config.critic.model.path)
        _check_vocabulary(config.critic.model.path, config.actor_rollout_ref.model.path)
    if config.algorithm.custom_adv_estimator.path is not None:
        from asyncrl.launch.estimator import open_estimator  # imports torch, as what it loads does

        open_estimator(config)
    if config.actor_rollout_ref.actor.policy_loss.custom.path is not None:
        from asyncrl.launch.policy_loss import open_policy_loss

        open_policy_loss(config.actor_rollout_ref.actor)
    if config.trainer.v1.custom_schedule.path is not None or config.trainer.v1.sampler.custom_sampler.path is not None:
        from asyncrl.launch.schedule import open_sampler, open_schedule

        open_sampler(config, open_schedule(config))
    engine = config.actor_rollout_ref.rollout.custom_engine
    if engine.path is not None and engine.name is not None:
        from asyncrl.workers.engine_process import EngineRecipe

        EngineRecipe.maker(resolve_path(engine.path), engine.name)
    tokenizer = open_tokenizer(config)
    stream, validation = open_prompts(config, tokenizer)
    function = config.reward.custom_reward_function
    if function.path is not None:
        check_signature(load_function(resolve_path(function.path), function.name), function.reward_kwargs)
    else:
        check_sources([*stream.data_sources, *(row.data_source for row in validation)])
    return stream.prompts_per_epoch


def _check_model(option: str, path: str) -> None:
    folder = Path(resolve_path(path))
    if not (folder / "config.json").is_file():
        raise ConfigError(option, path, "a local folder of a Hugging Face model, with config.json and safetensors")
    if not any(folder.glob("*.safetensors")):
        raise ConfigError(option, path, "its weights must be safetensors files; there are none")


def _check_vocabulary(critic: str, policy: str) -> None:
    """A critic reads the policy's tokens."""
    known, needed = (_vocabulary(path) for path in (critic, policy))
    if known is not None and needed is not None and known < needed:
        raise ConfigError(
            "critic.model.path", critic, f"it knows {known} tokens, the policy has {needed}; allowed: a model with the same tokenizer"
        )


def _vocabulary(path: str) -> int | None:
    size = json.loads((Path(resolve_path(path)) / "config.json").read_text(encoding="utf-8")).get("vocab_size")
    return size if isinstance(size, int) else None
