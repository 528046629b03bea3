"""The mode of a run: its schedule, its sampler, and its filter, from the configuration or from the user's files."""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

from asyncrl.config.mode_checks import waits_too_far_ahead
from asyncrl.config.places import resolve_path
from asyncrl.config.schema import Config
from asyncrl.config.schema.trainer import Custom
from asyncrl.errors import ConfigError
from asyncrl.rewards.load import load_object
from asyncrl.trainer.sampler import AsyncSampler, GroupFilter, Sampler, SyncSampler
from asyncrl.trainer.schedule import Schedule, TrainingWindow

SCHEDULE, SAMPLER = "trainer.v1.custom_schedule", "trainer.v1.sampler.custom_sampler"
WINDOWS: Mapping[str, TrainingWindow] = MappingProxyType({"sync": "sleep", "colocate_async": "pause", "separate_async": "swap"})
"""What the engines of a mode do while the policy trains."""


def open_schedule(config: Config) -> Schedule:
    """The schedule of ``trainer.v1``. Raises ConfigError for a user's that cannot be found, is no Schedule, or does not fit."""
    v1 = config.trainer.v1
    made = _of_user(v1.custom_schedule, SCHEDULE)
    if made is None:
        return Schedule(
            lookahead=v1.lookahead,
            updates=v1.updates,
            training_window=WINDOWS[v1.trainer_mode],
            whole_groups=v1.trainer_mode != "sync",
        )
    if not isinstance(made, Schedule):
        raise ConfigError(f"{SCHEDULE}.name", v1.custom_schedule.name, f"it is a {type(made).__name__}, expected an asyncrl Schedule")
    if (made.training_window == "swap") != (v1.trainer_mode == "separate_async"):
        allowed = "its training_window is swap exactly where trainer.v1.trainer_mode=separate_async gives engines devices of their own"
        raise ConfigError(f"{SCHEDULE}.name", v1.custom_schedule.name, allowed)
    prompts, mini = config.data.train_batch_size, config.actor_rollout_ref.actor.ppo_mini_batch_size
    if prompts % made.updates or (prompts // made.updates) % mini:
        allowed = f"data.train_batch_size = {prompts} prompts are whole mini-batches of {mini} in each of its {made.updates} updates"
        raise ConfigError(f"{SCHEDULE}.name", v1.custom_schedule.name, allowed)
    if made.lookahead > 0 and not made.whole_groups:
        allowed = f"whole_groups=True with its lookahead of {made.lookahead:g}: what runs ahead has no other bound on its staleness"
        raise ConfigError(f"{SCHEDULE}.name", v1.custom_schedule.name, allowed)
    if made.whole_groups and (allowed := waits_too_far_ahead(v1.sampler, made.lookahead)):
        raise ConfigError(f"{SCHEDULE}.name", v1.custom_schedule.name, f"its lookahead is {made.lookahead:g}, {allowed}")
    return made


def open_sampler(config: Config, schedule: Schedule) -> Sampler:
    """The sampler of ``trainer.v1.sampler``. Raises ConfigError for a user's that cannot be found or made."""
    options, rule = config.trainer.v1.sampler, config.algorithm.filter_groups
    kind: Callable[..., Any] | None = _of_user(options.custom_sampler, SAMPLER)
    if kind is not None:
        return _made(kind, options.sampler_kwargs, options.custom_sampler)
    if schedule.whole_groups:
        return AsyncSampler(
            threshold=options.max_off_policy_threshold,
            strategy=options.max_off_policy_strategy,
            filter=rule.enable,
            max_batches=rule.gen_batches,
        )
    groups = GroupFilter(rule.max_inflight_gen_batches, rule.gen_batches) if rule.enable else None
    return SyncSampler(refill_failed=options.sync_refill_failed_groups, filter=groups)


def _made(kind: Callable[..., Any], kwargs: dict[str, Any], custom: Custom) -> Sampler:
    try:
        sampler = kind(**kwargs)
    except TypeError as error:
        raise ConfigError("trainer.v1.sampler.sampler_kwargs", kwargs, f"{custom.name} cannot be made of them: {error}") from error
    if not isinstance(sampler, Sampler):
        raise ConfigError(f"{SAMPLER}.name", custom.name, "expected a class with a method choose(groups, ask)")
    return sampler


def _of_user(custom: Custom, section: str) -> Any:
    return None if custom.path is None or custom.name is None else load_object(resolve_path(custom.path), custom.name, section)
