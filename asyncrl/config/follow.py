"""Options that take another option's value while they are null."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import TypeVar

import msgspec

from asyncrl.config.schema.correction import BypassCorrection
from asyncrl.config.schema.root import Config

FOLLOWS: Mapping[str, str] = MappingProxyType(
    {
        "actor_rollout_ref.actor.loss_scale_factor": "data.max_response_length",
        **{
            f"actor_rollout_ref.actor.policy_loss.rollout_correction.{name}": f"algorithm.rollout_correction.{name}"
            for name in BypassCorrection.__struct_fields__
        },
        "actor_rollout_ref.ref.log_prob_use_dynamic_bsz": "actor_rollout_ref.actor.use_dynamic_bsz",
        "actor_rollout_ref.ref.log_prob_max_token_len_per_gpu": "actor_rollout_ref.actor.ppo_max_token_len_per_gpu",
        "actor_rollout_ref.rollout.n_gpus_per_node": "trainer.n_gpus_per_node",
        "actor_rollout_ref.rollout.prompt_length": "data.max_prompt_length",
        "actor_rollout_ref.rollout.response_length": "data.max_response_length",
        "actor_rollout_ref.rollout.log_prob_use_dynamic_bsz": "actor_rollout_ref.actor.use_dynamic_bsz",
        "actor_rollout_ref.rollout.log_prob_max_token_len_per_gpu": "actor_rollout_ref.actor.ppo_max_token_len_per_gpu",
        "reward.reward_kwargs.max_resp_len": "data.max_response_length",
        "critic.ppo_mini_batch_size": "actor_rollout_ref.actor.ppo_mini_batch_size",
        "critic.use_dynamic_bsz": "actor_rollout_ref.actor.use_dynamic_bsz",
        "critic.ppo_epochs": "actor_rollout_ref.actor.ppo_epochs",
        "critic.shuffle": "actor_rollout_ref.actor.shuffle",
        "critic.loss_agg_mode": "actor_rollout_ref.actor.loss_agg_mode",
        "critic.loss_scale_factor": "actor_rollout_ref.actor.loss_scale_factor",
    }
)
"""Follower and the option it follows. Options that follow one of their own section are properties of it (``Actor.clip_low``)."""


def filled(config: Config) -> Config:
    """The configuration with every follower that is null set to what it follows."""
    data, roles = config.data, config.actor_rollout_ref
    actor = roles.actor
    if actor.loss_scale_factor is None:
        actor = msgspec.structs.replace(actor, loss_scale_factor=float(data.max_response_length))
    correction = _fill(actor.policy_loss.rollout_correction, msgspec.structs.asdict(config.algorithm.rollout_correction))
    actor = msgspec.structs.replace(actor, policy_loss=msgspec.structs.replace(actor.policy_loss, rollout_correction=correction))
    passes = {"log_prob_use_dynamic_bsz": actor.use_dynamic_bsz, "log_prob_max_token_len_per_gpu": actor.ppo_max_token_len_per_gpu}
    lengths = {"prompt_length": data.max_prompt_length, "response_length": data.max_response_length}
    engines = {"n_gpus_per_node": config.trainer.n_gpus_per_node}
    shared = ("ppo_mini_batch_size", "use_dynamic_bsz", "ppo_epochs", "shuffle", "loss_agg_mode", "loss_scale_factor")
    of_actor = msgspec.structs.asdict(actor)
    critic = _fill(config.critic, {name: of_actor[name] for name in shared})
    roles = msgspec.structs.replace(
        roles, actor=actor, ref=_fill(roles.ref, passes), rollout=_fill(roles.rollout, {**passes, **lengths, **engines})
    )
    judging = _fill(config.reward.reward_kwargs, {"max_resp_len": data.max_response_length})
    reward = msgspec.structs.replace(config.reward, reward_kwargs=judging)
    return msgspec.structs.replace(config, actor_rollout_ref=roles, critic=critic, reward=reward)


S = TypeVar("S", bound=msgspec.Struct)


def _fill(section: S, values: Mapping[str, object]) -> S:
    present = msgspec.structs.asdict(section)
    return msgspec.structs.replace(section, **{name: value for name, value in values.items() if name in present and present[name] is None})
