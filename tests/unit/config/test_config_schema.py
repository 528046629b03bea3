"""The schema: defaults, meanings, followers."""

import subprocess
import sys
from typing import Any

import msgspec
import pytest

from asyncrl.config.follow import FOLLOWS, filled
from asyncrl.config.load import assembled
from asyncrl.config.names import allowed_text, describe, described, dotted_names, options, sections
from asyncrl.config.schema import Config
from asyncrl.config.schema.actor import Actor
from asyncrl.config.schema.rollout import Rollout
from asyncrl.config.verl_names import default_of, in_verl

R = "actor_rollout_ref"
DIFFERENT: dict[str, Any] = {
    f"{R}.actor.clip_ratio_low": None,
    f"{R}.actor.clip_ratio_high": None,
    f"{R}.actor.grad_clip": None,
    f"{R}.actor.fsdp_config.dtype": None,
    f"{R}.ref.fsdp_config.dtype": None,
    f"{R}.rollout.dtype": None,
    f"{R}.rollout.name": "embedded",
    f"{R}.rollout.checkpoint_engine.backend": None,
    f"{R}.rollout.tensor_model_parallel_size": 1,
    "critic.fsdp.dtype": None,
    "critic.forward_max_token_len_per_gpu": None,
    "critic.grad_clip": None,
    "critic.model.path": None,
    "reward.reward_kwargs.overlong_buffer_cfg.enable": False,
    "reward.reward_kwargs.overlong_buffer_cfg.len": 0,
    "reward.reward_kwargs.overlong_buffer_cfg.penalty_factor": 1.0,
    "reward.reward_kwargs.overlong_buffer_cfg.log": False,
    "data.train_files": ["~/data/rlhf/gsm8k/train.parquet"],
    "data.val_files": ["~/data/rlhf/gsm8k/test.parquet"],
    "trainer.logger": ["console", "file", "tensorboard"],
    "trainer.nnodes": None,
    "trainer.n_gpus_per_node": None,
    "trainer.device": None,
    "trainer.default_local_dir": None,
}
OURS = {
    "trainer.seed": 1, "runtime.interface": "127.0.0.1", "runtime.port_range": None, "runtime.silence": 600.0,
    "runtime.shared_memory": 1 << 30,
    "debug": None,
    f"{R}.rollout.custom_engine.path": None, f"{R}.rollout.custom_engine.name": None,
    f"{R}.actor.policy_loss.custom.path": None, f"{R}.actor.policy_loss.custom.name": "policy_loss",
    f"{R}.actor.policy_loss.custom.options": {}, f"{R}.actor.policy_loss.epsilon": 0.2, f"{R}.actor.policy_loss.epsilon_high": None,
    f"{R}.actor.policy_loss.delta": None, f"{R}.actor.policy_loss.importance_sampling_level": "token",
    f"{R}.actor.policy_loss.vespo_k_pos": 2.0, f"{R}.actor.policy_loss.vespo_lambda_pos": 3.0,
    f"{R}.actor.policy_loss.vespo_k_neg": 3.0, f"{R}.actor.policy_loss.vespo_lambda_neg": 2.0,
    "algorithm.rollout_correction.rejected_in_denominator": False,
    "algorithm.custom_adv_estimator.path": None, "algorithm.custom_adv_estimator.name": "estimate",
    "trainer.resume_newer": "keep", "trainer.save_on_exit": "auto", "trainer.v1.sampler.lease": 3600.0,
    "trainer.v1.custom_schedule.path": None, "trainer.v1.custom_schedule.name": None,
    "transfer_queue.budget_gb": 4.0, "transfer_queue.journal": None, "transfer_queue.journal_folder": None,
}  # fmt: skip


@pytest.mark.parametrize("name", [name for name in options() if name not in OURS])
def test_a_default_is_that_of_verl_but_for_a_written_list(name: str) -> None:
    mine = options()[name].default
    if name in FOLLOWS and mine is None:
        return
    assert mine == DIFFERENT.get(name, default_of(name))
    assert (name in DIFFERENT) == (mine != default_of(name))


def test_only_the_written_options_are_not_names_of_verl() -> None:
    assert {name: option.default for name, option in options().items() if not in_verl(name)} == OURS


def test_defaults_by_file_and_by_code_are_equal() -> None:
    by_file = assembled({R: {"rollout": {"n": 2}}}, "empty").config
    by_code = filled(Config(actor_rollout_ref=msgspec.structs.replace(Config().actor_rollout_ref, rollout=Rollout(n=2))))
    assert by_file == by_code


def test_every_option_and_section_has_a_meaning() -> None:
    assert [name for name, option in described().items() if not option.meaning] == []
    assert [name for name in sections() if not describe(name)] == []
    assert describe("data.train_batch_size") == "P: prompts of one step."
    with pytest.raises(KeyError):
        describe("data.nothing")


def test_every_allowed_value_is_said_in_words() -> None:
    words = dotted_names()
    assert words["trainer.total_training_steps"] == "null, or a whole number >= 1"
    assert words["trainer.logger"] == "a list, each (one of console, file, tensorboard)"
    assert words[f"{R}.actor.strategy"] == "one of fsdp, fsdp2"
    assert words[f"{R}.rollout.top_p"] == "a number > 0 and <= 1"
    assert words["trainer.project_name"] == "a text that is not empty"
    assert words["data.apply_chat_template_kwargs"] == "a table {key: value}"
    assert allowed_text(bool) == "true or false"


def test_the_tree_cannot_be_changed() -> None:
    with pytest.raises(AttributeError):
        Config().trainer.seed = 3  # type: ignore[misc]


def test_a_follower_takes_the_value_it_follows_and_keeps_its_own() -> None:
    base: dict[str, Any] = {
        R: {"rollout": {"n": 2}, "actor": {"ppo_max_token_len_per_gpu": 5000, "use_dynamic_bsz": True}},
        "data": {"max_response_length": 99},
    }
    roles = assembled(base, "x").config.actor_rollout_ref
    assert (roles.rollout.response_limit, roles.rollout.prompt_limit, roles.rollout.model_limit) == (99, 512, 611)
    assert (roles.ref.token_budget, roles.rollout.token_budget, roles.ref.dynamic) == (5000, 5000, True)
    assert roles.actor.loss_scale == 99.0
    base[R]["ref"] = {"log_prob_max_token_len_per_gpu": 7000, "log_prob_use_dynamic_bsz": False}
    roles = assembled(base, "x").config.actor_rollout_ref
    assert (roles.ref.token_budget, roles.ref.dynamic, roles.rollout.token_budget) == (7000, False, 5000)


def test_an_unfilled_follower_says_how_to_fill_it() -> None:
    with pytest.raises(ValueError, match=r"rollout.prompt_length is null: .*load_config"):
        _ = Config().actor_rollout_ref.rollout.prompt_limit


def test_the_clips_fall_back_to_one_ratio_and_keep_an_explicit_zero() -> None:
    assert (Actor(clip_ratio=0.3).clip_low, Actor(clip_ratio=0.3).clip_high) == (0.3, 0.3)
    assert (Actor(clip_ratio_low=0.0).clip_low, Actor(clip_ratio_low=10.0, clip_ratio_high=0.2).clip_low) == (0.0, 10.0)


def test_the_reference_is_needed_for_either_kl() -> None:
    assert not Config().need_reference
    assert assembled({R: {"rollout": {"n": 2}}, "algorithm": {"use_kl_in_reward": True}}, "x").config.need_reference
    assert assembled({R: {"rollout": {"n": 2}, "actor": {"use_kl_loss": True}}}, "x").config.need_reference


def test_the_critic_is_there_for_an_estimator_that_needs_its_values_or_by_word() -> None:
    assert Config().need_critic
    rollout = {R: {"rollout": {"n": 2}}}
    assert not assembled(rollout | {"algorithm": {"adv_estimator": "grpo"}}, "x").config.need_critic
    assert assembled(rollout | {"algorithm": {"adv_estimator": "grpo"}, "critic": {"enable": True}}, "x").config.need_critic


def test_the_critic_follows_the_policy_where_it_is_not_told_otherwise() -> None:
    actor = {"ppo_mini_batch_size": 64, "ppo_epochs": 3, "shuffle": True, "loss_agg_mode": "token-sum", "use_dynamic_bsz": True}
    critic = assembled({R: {"actor": actor}}, "x").config.critic
    assert (critic.mini_batch_size, critic.epochs, critic.shuffled, critic.aggregation, critic.dynamic) == (64, 3, True, "token-sum", True)
    assert (critic.loss_scale, critic.forward_rows, critic.forward_tokens) == (512.0, None, 32768)
    own = {"ppo_mini_batch_size": 32, "shuffle": False, "ppo_micro_batch_size_per_gpu": 4, "ppo_max_token_len_per_gpu": 2000}
    critic = assembled({R: {"actor": actor}, "critic": own}, "x").config.critic
    assert (critic.mini_batch_size, critic.shuffled, critic.forward_rows, critic.forward_tokens) == (32, False, 4, 2000)


def test_an_option_of_a_section_above_keeps_its_meaning() -> None:
    assert describe("critic.optim.betas") == describe(f"{R}.actor.optim.betas")
    assert (options()["critic.optim.lr"].default, options()[f"{R}.actor.optim.lr"].default) == (1e-5, 1e-6)


def test_loading_imports_neither_torch_nor_transformers_nor_numpy() -> None:
    code = (
        "import sys; from asyncrl.config.load import load_config; load_config(['config=quickstart']);"
        "print([m for m in ('torch', 'transformers', 'numpy', 'zmq') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
