"""Wrong configurations are refused with the key named, and nothing but a ConfigError is raised."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, get_args

import pytest
from hypothesis import given, settings, strategies as st

from asyncrl.algorithms.advantages import ESTIMATORS
from asyncrl.config.load import assembled, load_config
from asyncrl.config.names import options, sections
from asyncrl.config.schema.algorithm import AdvEstimator
from asyncrl.config.tree import Tree, merged
from asyncrl.config.verl_names import known_name
from asyncrl.errors import ConfigError

ROLES = "actor_rollout_ref"


WRONG = [
    ("trainer.sede=3", "trainer.sede", "trainer.seed"),
    ("rollout.n=4", "rollout.n", f"{ROLES}.rollout.n"),
    ("trainer.seed=one", "trainer.seed", "a whole number >= 0"),
    ("trainer.seed=-1", "trainer.seed", "a whole number >= 0"),
    ("trainer.seed=null", "trainer.seed", "a whole number"),
    ("trainer.seed=99999999999999999999999", "trainer.seed", "a whole number"),
    ("trainer.experiment_name=12", "trainer.experiment_name", "a text"),
    ("trainer.val_only=maybe", "trainer.val_only", "true or false"),
    ("trainer.logger=[console,wandb]", "trainer.logger", "console, file, tensorboard"),
    ("trainer=3", "trainer", "a section"),
    ("trainer.v1=null", "trainer.v1", "a section"),
    ("trainer.v1.trainer_mode=async", "trainer.v1.trainer_mode", "one of sync, colocate_async, separate_async"),
    ("trainer.v1.custom_schedule.path=modes.py", "trainer.v1.custom_schedule.name", "path and name together"),
    ("trainer.v1.sampler.max_off_policy_threshold=0", "trainer.v1.sampler.max_off_policy_threshold", ">= 1"),
    ("trainer.v1.sampler.max_off_policy_strategy=hope", "trainer.v1.sampler.max_off_policy_strategy", "one of drop, wait"),
    ("trainer.v1.separate_async.hybrid_rollout.enable_switch=true", "trainer.v1.separate_async.hybrid_rollout.enable_switch", "false"),
    ("algorithm.adv_estimator=gaes", "algorithm.adv_estimator", "did you mean gae"),
    ("algorithm.gamma=1.5", "algorithm.gamma", "<= 1"),
    ("algorithm.lam=-0.1", "algorithm.lam", ">= 0"),
    ("algorithm.gdpo_reward_keys=[]", "algorithm.gdpo_reward_keys", "names that differ"),
    ("algorithm.gdpo_reward_keys=[a,a]", "algorithm.gdpo_reward_keys", "names that differ"),
    ("algorithm.gdpo_reward_weights=[1.0]", "algorithm.gdpo_reward_weights", "each of the 0 gdpo_reward_keys"),
    ("algorithm.use_pf_ppo=True", "algorithm.use_pf_ppo", "does not have yet"),
    ("algorithm.filter_groups.max_inflight_gen_batches=0", "algorithm.filter_groups.max_inflight_gen_batches", ">= 1"),
    (f"{ROLES}.actor.policy_loss.loss_mode=gppo", f"{ROLES}.actor.policy_loss.loss_mode", "did you mean gspo"),
    (f"{ROLES}.actor.policy_loss.loss_mode=dro", f"{ROLES}.actor.policy_loss.dro_beta", "a number > 0"),
    (f"{ROLES}.actor.policy_loss.dro_beta=0", f"{ROLES}.actor.policy_loss.dro_beta", "a number > 0"),
    (f"{ROLES}.actor.policy_loss.clip_cov_ratio=0", f"{ROLES}.actor.policy_loss.clip_cov_ratio", "> 0 and <= 1"),
    (f"{ROLES}.actor.policy_loss.clip_cov_lb=5", f"{ROLES}.actor.policy_loss.clip_cov_lb", "below clip_cov_ub = 5"),
    (f"{ROLES}.actor.policy_loss.importance_sampling_level=row", f"{ROLES}.actor.policy_loss.importance_sampling_level", "sequence"),
    (f"{ROLES}.actor.policy_loss.loss_mode=bypass_mode", "algorithm.rollout_correction.bypass_mode", "allowed: true"),
    (f"{ROLES}.actor.tau_pos=0", f"{ROLES}.actor.tau_pos", "> 0"),
    ("algorithm.rollout_correction.rollout_is=tokens", "algorithm.rollout_correction.rollout_is", "did you mean token"),
    ("algorithm.rollout_correction.rollout_is_threshold=5.0_0.5", "algorithm.rollout_correction.rollout_is_threshold", "0 < lo <= hi"),
    ("algorithm.rollout_correction.rollout_is_threshold=high", "algorithm.rollout_correction.rollout_is_threshold", "a number > 0"),
    ("algorithm.rollout_correction.rollout_rs=token_k4", "algorithm.rollout_correction.rollout_rs", "seq_max_k3"),
    ("algorithm.rollout_correction.rollout_rs=token_k1", "algorithm.rollout_correction.rollout_rs_threshold", "a threshold for token_k1"),
    ("algorithm.rollout_correction.loss_type=reinforce", "algorithm.rollout_correction.loss_type", "not of vanilla"),
    ("reward.reward_kwargs.overlong_buffer_cfg.enable=true", "reward.reward_kwargs.overlong_buffer_cfg.len", "at least 1"),
    ("reward.reward_manager.name=prime", "reward.reward_manager.name", "naive, dapo"),
    (f"{ROLES}.actor.clip_ratio=-0.2", f"{ROLES}.actor.clip_ratio", "a number >= 0"),
    (f"{ROLES}.actor.clip_ratio_c=1.0", f"{ROLES}.actor.clip_ratio_c", "a number > 1"),
    (f"{ROLES}.actor.loss_agg_mode=token_mean", f"{ROLES}.actor.loss_agg_mode", "did you mean token-mean"),
    (f"{ROLES}.actor.grad_clip=0.5", f"{ROLES}.actor.grad_clip", "optim.clip_grad"),
    (f"{ROLES}.actor.ppo_mini_batch_size=5", f"{ROLES}.actor.ppo_mini_batch_size", "a divisor of data.train_batch_size = 32"),
    (f"{ROLES}.actor.ppo_mini_batch_size=64", f"{ROLES}.actor.ppo_mini_batch_size", "at most data.train_batch_size = 32"),
    (f"{ROLES}.actor.ppo_micro_batch_size_per_gpu=257", f"{ROLES}.actor.ppo_micro_batch_size_per_gpu", "256"),
    (f"{ROLES}.actor.ppo_micro_batch_size_per_gpu=0", f"{ROLES}.actor.ppo_micro_batch_size_per_gpu", ">= 1"),
    (f"{ROLES}.actor.ppo_max_token_len_per_gpu=11", f"{ROLES}.actor.ppo_max_token_len_per_gpu", "at least"),
    (f"{ROLES}.actor.entropy_coeff=nan", f"{ROLES}.actor.entropy_coeff", "finite"),
    (f"{ROLES}.actor.optim.lr=-1e-6", f"{ROLES}.actor.optim.lr", "a number >= 0"),
    (f"{ROLES}.actor.optim.lr=inf", f"{ROLES}.actor.optim.lr", "finite"),
    (f"{ROLES}.actor.optim.betas=[0.9]", f"{ROLES}.actor.optim.betas", "a list of 2"),
    (f"{ROLES}.actor.optim.betas=[0.9,1.0]", f"{ROLES}.actor.optim.betas", "below 1"),
    (f"{ROLES}.actor.fsdp_config.fsdp_size=0", f"{ROLES}.actor.fsdp_config.fsdp_size", "-1"),
    (f"{ROLES}.actor.fsdp_config.param_offload=True", f"{ROLES}.actor.fsdp_config.param_offload", "does not have yet"),
    (f"{ROLES}.actor.strategy=megatron", f"{ROLES}.actor.strategy", "fsdp, fsdp2"),
    (f"{ROLES}.rollout.name=vllm", f"{ROLES}.rollout.name", "embedded"),
    (f"{ROLES}.rollout.mode=sync", f"{ROLES}.rollout.mode", "async"),
    (f"{ROLES}.rollout.n=1", f"{ROLES}.rollout.n", "at least 2"),
    (f"{ROLES}.rollout.temperature=0", f"{ROLES}.rollout.temperature", "a number > 0"),
    (f"{ROLES}.rollout.temperature=-1", f"{ROLES}.rollout.temperature", "a number > 0"),
    (f"{ROLES}.rollout.top_p=1.5", f"{ROLES}.rollout.top_p", "<= 1"),
    (f"{ROLES}.rollout.seed=7", f"{ROLES}.rollout.seed", "trainer.seed"),
    (f"{ROLES}.rollout.tensor_model_parallel_size=2", f"{ROLES}.rollout.tensor_model_parallel_size", "allowed: 1"),
    (f"{ROLES}.rollout.val_kwargs.do_sample=True", f"{ROLES}.rollout.val_kwargs.temperature", "above 0"),
    (f"{ROLES}.rollout.max_model_len=11", f"{ROLES}.rollout.max_model_len", "12"),
    (f"{ROLES}.rollout.max_num_batched_tokens=7", f"{ROLES}.rollout.max_num_batched_tokens", "8"),
    (f"{ROLES}.rollout.response_length=5", f"{ROLES}.rollout.response_length", "4"),
    (f"{ROLES}.rollout.checkpoint_engine.backend=nccl", f"{ROLES}.rollout.checkpoint_engine.backend", "naive"),
    ("data.train_files=[]", "data.train_files", "at least one"),
    ("data.train_max_samples=0", "data.train_max_samples", "-1"),
    ("data.val_files=[]", "trainer.test_freq", "-1"),
    ("reward.timeout=0", "reward.timeout", "> 0"),
    ("runtime.interface=0.0.0.0", "runtime.interface", "127.0.0.1"),
    ("runtime.interface=*", "runtime.interface", "never all of them"),
    ("runtime.port_range=29700-29600", "runtime.port_range", "29600-29700"),
    ("runtime.port_range=29600-x", "runtime.port_range", "FIRST-LAST"),
    ("trainer.use_v1=false", "trainer.use_v1", "V1"),
    ("model_engine=megatron", "model_engine", "FSDP2"),
    ("transfer_queue.enable=false", "transfer_queue.enable", "TransferQueue"),
    ("critic.enable=maybe", "critic.enable", "true or false"),
    ("critic.model.path=''", "critic.model.path", "not empty"),
    ("critic.cliprange_value=-1", "critic.cliprange_value", ">= 0"),
    ("critic.optim.lr=-1", "critic.optim.lr", ">= 0"),
    ("critic.grad_clip=0.5", "critic.grad_clip", "critic.optim.clip_grad"),
    ("critic.fsdp.fsdp_size=0", "critic.fsdp.fsdp_size", "-1"),
    ("trainer.critic_warmup=-1", "trainer.critic_warmup", ">= 0"),
    ("trainer.max_critic_ckpt_to_keep=3", "trainer.max_critic_ckpt_to_keep", "one checkpoint holds both"),
    ("custom_reward_function.path=a.py", "custom_reward_function.path", "use reward.custom_reward_function.path"),
    ("trainer.experiment_name=${oc.env:HOME}", "trainer.experiment_name", "the name of another option"),
    ("trainer.experiment_name=${now:%Y}", "trainer.experiment_name", "the name of another option"),
    ("trainer.experiment_name=${trainer.nothing}", "trainer.experiment_name", "not found"),
    ("trainer.experiment_name=${trainer.experiment_name}", "trainer.experiment_name", "ecursive"),
    (f"{ROLES}.model.override_config._target_=os.system", f"{ROLES}.model.override_config._target_", "refused"),
]


# Of two options that do not go together.
PAIRS = [
    ({"algorithm": {"adv_estimator": "gae"}, "critic": {"enable": False}}, "critic.enable", "gae needs a critic's values"),
    ({"algorithm": {"adv_estimator": "gae"}, "critic": {"ppo_mini_batch_size": 5}}, "critic.ppo_mini_batch_size", "a divisor"),
    ({"algorithm": {"adv_estimator": "gae"}, "critic": {"ppo_max_token_len_per_gpu": 11}}, "critic.ppo_max_token_len_per_gpu", "at least"),
    ({"critic": {"enable": True, "forward_max_token_len_per_gpu": 11}}, "critic.forward_max_token_len_per_gpu", "at least"),
    ({"critic": {"enable": True, "fsdp": {"param_offload": True}}}, "critic.fsdp.param_offload", "does not have yet"),
    ({"critic": {"enable": True, "ppo_infer_max_token_len_per_gpu": 64}}, "critic.ppo_infer_max_token_len_per_gpu", "use critic.forward"),
    (
        {"algorithm": {"adv_estimator": "optimal_token_baseline", "rollout_correction": {"bypass_mode": True}}},
        "algorithm.rollout_correction.bypass_mode",
        "the pass for old_log_probs",
    ),
    (
        {"algorithm": {"rollout_correction": {"bypass_mode": True, "rollout_is": "token"}}},
        "algorithm.rollout_correction.rollout_is",
        "with bypass_mode=true only .*loss_mode=bypass_mode applies it",
    ),
    (
        {"algorithm": {"rollout_correction": {"bypass_mode": True, "rollout_rs": "token_k2", "rollout_rs_threshold": 0.5}}},
        "algorithm.rollout_correction.rollout_rs",
        "not vanilla",
    ),
    (
        {"algorithm": {"rollout_correction": {"rollout_is": "token"}}, "actor_rollout_ref": {"rollout": {"calculate_log_probs": False}}},
        "actor_rollout_ref.rollout.calculate_log_probs",
        "needs the engine's log-probs",
    ),
    (
        {"actor_rollout_ref": {"actor": {"policy_loss": {"rollout_correction": {"rollout_rs": "token_k1"}}}}},
        "actor_rollout_ref.actor.policy_loss.rollout_correction.rollout_rs_threshold",
        "a threshold for token_k1",
    ),
    (
        {"algorithm": {"adv_estimator": "gdpo", "gdpo_reward_keys": ["a", "b"], "gdpo_reward_weights": [1.0]}},
        "algorithm.gdpo_reward_weights",
        "each of the 2 gdpo_reward_keys",
    ),
]


GRAMMAR = [
    ("hydra.run.dir=x", "hydra.run.dir", "Hydra"),
    ("hydra/launcher=x", "hydra/launcher", "Hydra"),
    ("--seed=3", "--seed", "key=value"),
    ("trainer.seed", "trainer.seed", "key=value"),
    ("trainer.seed=[1", "trainer.seed", "key=value"),
    ("trainer.seed=", "trainer.seed", "a whole number"),
    ("~trainer.sede", "trainer.sede", "trainer.seed"),
    ("trainer.logger.x=1", "trainer.logger", "a list"),
    ("data.train_files=a,b", "data.train_files", "key=[a,b]"),
    ("+data.made_up=1", "data.made_up", "no such option"),
    ("++whatever=1", "whatever", "no such option"),
]


@pytest.mark.parametrize(("argument", "key", "part"), WRONG, ids=[argument for argument, _, _ in WRONG])
def test_a_wrong_configuration_is_refused_and_its_key_named(
    argument: str, key: str, part: str, quickstart_with: Callable[[str], Tree]
) -> None:
    """Without composing files, which the next test does, to be quick."""
    with pytest.raises(ConfigError) as caught:
        assembled(quickstart_with(argument), "quickstart")
    assert caught.value.key == key
    assert part in str(caught.value)
    assert key in str(caught.value)


@pytest.mark.parametrize(("given", "key", "part"), PAIRS, ids=[key for _, key, _ in PAIRS])
def test_options_that_do_not_go_together_are_refused_and_one_of_them_named(
    given: Tree, key: str, part: str, quickstart_with: Callable[[str], Tree]
) -> None:
    with pytest.raises(ConfigError, match=part) as caught:
        assembled(merged(quickstart_with("trainer.seed=1"), given), "quickstart")
    assert caught.value.key == key


@pytest.mark.parametrize("name", get_args(AdvEstimator))
def test_one_session_a_prompt_is_refused_for_an_estimator_that_compares_them(name: str, quickstart_with: Callable[[str], Tree]) -> None:
    given = merged(quickstart_with("actor_rollout_ref.rollout.n=1"), {"algorithm": {"adv_estimator": name}})
    if not ESTIMATORS[name].needs.groups:
        assert assembled(given, "quickstart").config.actor_rollout_ref.rollout.n == 1
        return
    with pytest.raises(ConfigError, match=f"{name} compares the sessions of a prompt"):
        assembled(given, "quickstart")


@pytest.mark.parametrize(("argument", "key", "part"), GRAMMAR + WRONG[::12], ids=[argument for argument, _, _ in GRAMMAR + WRONG[::12]])
def test_a_wrong_command_line_is_refused_and_its_key_named(argument: str, key: str, part: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_config(["config=quickstart", argument])
    assert caught.value.key == key
    assert part in str(caught.value)
    assert key in str(caught.value)


@pytest.mark.parametrize(
    ("argv", "part"),
    [
        ([], "quickstart"),
        (["trainer.seed=1"], "config=NAME"),
        (["config="], "config=NAME"),
        (["config=quickstart", "config=grpo"], "once"),
        (["config=quickstrat"], "quickstart"),
        (["config=/no/such/file.yaml"], "existing file"),
        (["config=/etc/hostname"], "ends in .yaml"),
    ],
)
def test_a_missing_or_wrong_name_says_what_there_is(argv: list[str], part: str) -> None:
    with pytest.raises(ConfigError, match=part) as caught:
        load_config(argv)
    assert caught.value.key == "config"


@pytest.mark.parametrize(
    ("text", "key"),
    [
        ("trainer: {sede: 3}", "trainer.sede"),
        ("trainer: {seed: x}", "trainer.seed"),
        ("rewrd: {num_workers: 3}", "rewrd.num_workers"),
        ("trainer: {seed: 1}\ntrainer: {seed: 2}", "config"),
        ("a: [1\nb: {", "config"),
        ("[1, 2]", "config"),
        ("defaults: [nothing_there]", "config"),
        ("hydra: {run: {dir: x}}", "hydra"),
        ("data:\n  train_files: ???", "data.train_files"),
        ("trainer: {experiment_name: '${oc.env:HOME}'}", "trainer.experiment_name"),
        ("actor_rollout_ref: {model: {override_config: {_target_: os.system}}}", "actor_rollout_ref.model.override_config._target_"),
    ],
)
def test_a_wrong_yaml_file_is_refused_and_its_key_named(tmp_path: Path, text: str, key: str) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text(text)
    with pytest.raises(ConfigError) as caught:
        load_config([f"config={file}"])
    assert caught.value.key == key


def test_a_file_that_is_no_text_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ConfigError, match=r"mine\.yaml"):
        load_config([f"config={file}"])


def test_all_broken_combinations_are_told_at_once() -> None:
    with pytest.raises(ConfigError) as caught:
        load_config(["config=quickstart", f"{ROLES}.rollout.n=1", f"{ROLES}.actor.grad_clip=0.5"])
    assert caught.value.key == f"{ROLES}.rollout.n"
    assert any("grad_clip" in note for note in caught.value.__notes__)


def nested(name: str, value: Any) -> Tree:
    """``{"a": {"b": value}}`` for ``a.b``."""
    for part in reversed(name.split(".")):
        value = {part: value}
    return dict(value)


def mistyped(name: str, place: int, letter: str, how: str) -> str:
    """The name with one letter replaced, left out or put in."""
    place %= len(name)
    return name[:place] + {"replace": letter, "drop": "", "insert": letter + name[place]}[how] + name[place + 1 :]


@settings(max_examples=60, deadline=None)
@given(
    name=st.sampled_from(list(options())),
    place=st.integers(0, 80),
    letter=st.sampled_from("abcdefghijklmnopqrstuvwxyz_"),
    how=st.sampled_from(["replace", "drop", "insert"]),
)
def test_a_typo_of_one_letter_in_any_key_is_refused_with_the_key_suggested(name: str, place: int, letter: str, how: str) -> None:
    wrong = mistyped(name, place, letter, how)
    empty_part = any(not part for part in wrong.split("."))
    if wrong in options() or wrong in sections() or known_name(wrong) or empty_part or inside_a_table(wrong):
        return
    with pytest.raises(ConfigError) as caught:
        assembled(nested(wrong, 1), "test")
    assert caught.value.key == wrong
    assert name in caught.value.hint


def inside_a_table(name: str) -> bool:
    """Whether the name lies below another option."""
    return any(name.startswith(f"{other}.") for other in options())


@pytest.mark.parametrize("name", options())
def test_any_key_with_a_value_of_a_wrong_type_is_refused_by_its_name(name: str) -> None:
    wrong = [1, "x"] if options()[name].takes_table else {"a": 1}
    with pytest.raises(ConfigError) as caught:
        assembled(nested(name, wrong), "test")
    assert caught.value.key == name
    assert caught.value.seen == wrong


@pytest.mark.parametrize("name", [name for name, option in options().items() if " >= " in option.allowed or " > " in option.allowed])
def test_any_number_below_its_range_is_refused_by_its_name(name: str) -> None:
    below: Any = -7 if not options()[name].allowed.endswith(")") else [-7, -7]
    with pytest.raises(ConfigError) as caught:
        assembled(nested(name, below), "test")
    assert caught.value.key == name
