"""Reading a configuration: files, precedence, grammar, notices, verl's command lines."""

from collections.abc import Callable
from pathlib import Path

import pytest

from asyncrl.config.load import Loaded, assembled, load_config, to_yaml
from asyncrl.config.places import config_file, configs_folder, resolve_path, shipped_configs
from asyncrl.config.tree import Tree
from asyncrl.errors import ConfigError

R = "actor_rollout_ref"


def quickstart(*arguments: str) -> Loaded:
    """The shipped first run with options."""
    return load_config(["config=quickstart", *arguments])


def test_the_quickstart_is_the_recipe_it_names() -> None:
    loaded = quickstart()
    config = loaded.config
    roles = config.actor_rollout_ref
    assert loaded.name == "quickstart"
    assert loaded.notices == []
    assert (config.data.train_batch_size, roles.rollout.n, roles.actor.ppo_mini_batch_size) == (32, 16, 16)
    assert (roles.actor.clip_low, roles.actor.clip_high, roles.actor.clip_ratio_c) == (0.2, 0.2, 3.0)
    assert (roles.actor.use_kl_loss, roles.actor.kl_loss_coef, roles.actor.kl_loss_type) == (True, 0.001, "low_var_kl")
    assert (roles.actor.entropy_coeff, roles.actor.optim.lr, roles.actor.optim.weight_decay) == (0.03, 3e-4, 0.01)
    assert (config.trainer.total_training_steps, config.trainer.test_freq, config.trainer.n_gpus_per_node) == (100, 10, 2)
    assert (config.transfer_queue.shards, roles.rollout.agent.num_workers, config.reward.num_workers) == (2, 1, 1)
    assert config.data.train_files == ("pkg://asyncrl.quickstart/add1/prompts.jsonl",)


def test_grpo_needs_files_and_a_model() -> None:
    with pytest.raises(ConfigError, match=r"data\.train_files"):
        load_config(["config=grpo"])
    with pytest.raises(ConfigError, match=r"actor_rollout_ref\.model\.path"):
        load_config(["config=grpo", "data.train_files=a.jsonl"])
    config = load_config(["config=grpo", "data.train_files=a.jsonl", f"{R}.model.path=m"]).config
    assert config.data.val_files == ()
    assert config.trainer.nnodes is None


def test_every_shipped_file_is_listed_and_found() -> None:
    assert {"grpo", "quickstart"} <= set(shipped_configs())
    assert config_file("grpo") == configs_folder() / "grpo.yaml"


def test_the_command_line_goes_over_the_file_and_the_file_over_its_groups(tmp_path: Path) -> None:
    (tmp_path / "mode").mkdir()
    (tmp_path / "mode" / "fast.yaml").write_text("# @package _global_\ntrainer: {seed: 5, test_freq: 6, save_freq: 7}\n")
    (tmp_path / "mode" / "slow.yaml").write_text("# @package _global_\ntrainer: {save_freq: 70}\n")
    file = tmp_path / "mine.yaml"
    file.write_text("defaults: [quickstart, {mode: fast}, _self_]\ntrainer: {test_freq: 8}\n")
    trainer = load_config([f"config={file}", "trainer.seed=9"]).config.trainer
    assert (trainer.seed, trainer.test_freq, trainer.save_freq) == (9, 8, 7)
    assert load_config([f"config={file}", "mode=slow"]).config.trainer.save_freq == 70


def test_a_file_without_self_in_its_defaults_still_goes_over_them(tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text("defaults: [quickstart]\ntrainer: {seed: 4}\n")
    assert load_config([f"config={file}"]).config.trainer.seed == 4


@pytest.mark.parametrize("sign", ["", "+", "++"])
def test_a_key_may_have_any_sign_of_hydra(sign: str) -> None:
    assert quickstart(f"{sign}trainer.seed=3").config.trainer.seed == 3


def test_a_deleted_key_is_back_at_its_default() -> None:
    assert quickstart("~trainer.test_freq").config.trainer.test_freq == -1


def test_an_explicit_zero_false_or_empty_text_is_kept() -> None:
    config = quickstart("trainer.seed=0", f"{R}.actor.optim.lr=0", "data.shuffle=false", f"{R}.actor.clip_ratio_low=0").config
    assert (config.trainer.seed, config.data.shuffle) == (0, False)
    assert (config.actor_rollout_ref.actor.optim.lr, config.actor_rollout_ref.actor.clip_low) == (0.0, 0.0)
    assert quickstart(f"{R}.model.custom_chat_template=''").config.actor_rollout_ref.model.custom_chat_template == ""


def test_values_may_point_to_other_options(tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text(
        "defaults: [quickstart, _self_]\ntrainer: {experiment_name: 'run-${trainer.seed}', project_name: '${oc.select:a.b,none}'}\n"
    )
    trainer = load_config([f"config={file}", "trainer.seed=8"]).config.trainer
    assert (trainer.experiment_name, trainer.project_name) == ("run-8", "none")


def test_one_value_stands_for_a_list_and_a_home_path_needs_no_quotes() -> None:
    config = quickstart("trainer.logger=console", "data.train_files=~/a.parquet", "data.val_files=[a.jsonl,b.jsonl]").config
    assert config.trainer.logger == ("console",)
    assert config.data.train_files == ("~/a.parquet",)
    assert config.data.val_files == ("a.jsonl", "b.jsonl")


def test_free_tables_take_any_key() -> None:
    config = quickstart("data.apply_chat_template_kwargs.enable_thinking=False", "+reward.custom_reward_function.reward_kwargs.a=1").config
    assert config.data.apply_chat_template_kwargs == {"enable_thinking": False}
    assert config.reward.custom_reward_function.reward_kwargs == {"a": 1}


def test_the_resolved_tree_reads_back_to_the_same_configuration(tmp_path: Path) -> None:
    loaded = quickstart("trainer.seed=5", f"{R}.rollout.top_p=0.9")
    file = tmp_path / "resolved.yaml"
    file.write_text(to_yaml(loaded.resolved))
    assert load_config([f"config={file}"]).config == loaded.config


NOTICED = [
    (f"{R}.rollout.name=hf", "embedded"),
    (f"{R}.actor.strategy=fsdp", "FSDP2"),
    (f"{R}.actor.strategy=fsdp2", "FSDP2"),
    (f"{R}.ref.strategy=fsdp2", "FSDP2"),
    ("trainer.use_v1=True", "V1"),
    ("transfer_queue.enable=True", "TransferQueue"),
    ("model_engine=dp", "FSDP2"),
    ("trainer.balance_batch=False", "older trainer"),
    ("+trainer.use_legacy_worker_impl=disable", "older trainer"),
    ("ray_kwargs.ray_init.num_cpus=4", "Ray only"),
    ("+ray_kwargs.ray_init.runtime_env.env_vars.A=1", "Ray only"),
    ("data.truncation=left", "does not read it"),
    (f"{R}.rollout.gpu_memory_utilization=0.4", "no such knob"),
    (f"{R}.actor.fsdp_config.param_offload=False", "is what asyncrl does"),
    (f"{R}.rollout.seed=42", "is what asyncrl does"),
    ("critic.fsdp.param_offload=True", "switched off"),
    ("critic.optim.lr=1e-4", "switched off"),
    ("trainer.v1.separate_async.hybrid_rollout.switch_threshold_ratio=0.5", "switched off"),
    (f"{R}.rollout.top_p=0.9", "not those of the sampled distribution"),
    (f"{R}.rollout.top_k=5", "not those of the sampled distribution"),
    (f"{R}.rollout.val_kwargs.n=4", "all answers to a prompt are the same"),
    (f"{R}.rollout.val_kwargs.temperature=0.7", "validation samples"),
    ("algorithm.use_kl_in_reward=True", "counts twice"),
]


@pytest.mark.parametrize(("argument", "part"), NOTICED, ids=[argument for argument, _ in NOTICED])
def test_what_has_no_effect_or_needs_a_word_is_said_in_one_line(argument: str, part: str, quickstart_with: Callable[[str], Tree]) -> None:
    notices = assembled(quickstart_with(argument), "quickstart").notices
    assert len(notices) == 1
    assert part in notices[0]
    assert argument.partition("=")[0].lstrip("+") in notices[0] or "top_k" in notices[0]


VERL_LINES = {
    "prefix_grouper": (
        "algorithm.adv_estimator=grpo data.train_files=~/data/gsm8k/train.parquet data.val_files=~/data/gsm8k/test.parquet"
        " data.train_batch_size=64 data.max_prompt_length=512 data.max_response_length=1024 data.filter_overlong_prompts=True"
        f" data.truncation=error {R}.model.path=Qwen/Qwen3-8B {R}.model.use_remove_padding=False {R}.actor.optim.lr=1e-6"
        f" {R}.actor.ppo_mini_batch_size=16 {R}.actor.ppo_micro_batch_size_per_gpu=2 {R}.actor.use_kl_loss=True"
        f" {R}.actor.fsdp_config.param_offload=False {R}.actor.use_prefix_grouper=True {R}.rollout.n=4"
        " trainer.balance_batch=True trainer.critic_warmup=0 trainer.nnodes=1 trainer.save_freq=20 trainer.total_epochs=15"
        " ray_kwargs.ray_init.runtime_env.py_executable=null",
        "",
    ),
    "cispo": (f"{R}.actor.policy_loss.loss_mode=cispo {R}.actor.clip_ratio_low=10 {R}.rollout.n=4 data.train_files=a {R}.model.path=m", ""),
    "gdpo": (
        'algorithm.adv_estimator=gdpo +algorithm.gdpo_reward_keys=["accuracy_reward", "format_reward"] data.train_files=a.parquet'
        f" {R}.model.path=m {R}.rollout.n=4",
        "",
    ),
    "ppo": (
        "algorithm.adv_estimator=gae data.train_files=a.parquet data.train_batch_size=1024 data.max_prompt_length=512"
        f" {R}.model.path=m {R}.model.use_remove_padding=True {R}.actor.ppo_mini_batch_size=256 {R}.actor.use_kl_loss=False"
        f" {R}.actor.use_dynamic_bsz=True {R}.actor.ppo_max_token_len_per_gpu=24000 {R}.rollout.n=4 critic.optim.lr=1e-5"
        " critic.model.path=m critic.model.use_remove_padding=True critic.model.enable_gradient_checkpointing=True"
        " critic.ppo_max_token_len_per_gpu=98304 critic.fsdp.param_offload=False critic.fsdp.optimizer_offload=False"
        " trainer.critic_warmup=0 algorithm.use_kl_in_reward=False critic.strategy=fsdp2",
        "",
    ),
    "critic lora": (f"algorithm.adv_estimator=gae {R}.rollout.n=4 critic.model.lora_rank=8", "critic.model.lora_rank"),
    "vllm": (f"{R}.rollout.name=vllm {R}.rollout.tensor_model_parallel_size=2", f"{R}.rollout.name"),
    "wandb": ('trainer.logger=["console","wandb"]', "trainer.logger"),
    "lora": (f"{R}.model.lora_rank=64 {R}.model.lora_alpha=32", f"{R}.model.lora_rank"),
    "megatron dtype": (f"+{R}.actor.fsdp_config.mixed_precision.reduce_dtype=bf16", f"{R}.actor.fsdp_config.mixed_precision.reduce_dtype"),
    "correction": (
        "algorithm.rollout_correction.rollout_is=sequence algorithm.rollout_correction.rollout_is_threshold=2.0"
        " algorithm.rollout_correction.rollout_rs=seq_mean_k1 algorithm.rollout_correction.rollout_rs_threshold=0.999_1.001"
        f" algorithm.rollout_correction.bypass_mode=true +{R}.actor.policy_loss.loss_mode=bypass_mode"
        f" algorithm.rollout_correction.loss_type=reinforce {R}.rollout.n=4 data.train_files=a {R}.model.path=m",
        "",
    ),
    "dapo": (
        f"reward.reward_manager.name=dapo +reward.reward_kwargs.overlong_buffer_cfg.enable=True {R}.rollout.n=4"
        " +reward.reward_kwargs.overlong_buffer_cfg.len=128 +reward.reward_kwargs.overlong_buffer_cfg.penalty_factor=1.0"
        " +reward.reward_kwargs.overlong_buffer_cfg.log=False +reward.reward_kwargs.max_resp_len=512"
        f" {R}.actor.clip_ratio_high=0.28 {R}.actor.clip_ratio_c=10.0 data.train_files=a {R}.model.path=m",
        "",
    ),
    "reward model": ("reward.reward_model.enable=True reward.reward_model.rollout.name=vllm", "reward.reward_model.enable"),
    "distillation": ("distillation.enabled=True distillation.nnodes=1", "distillation.enabled"),
    "profiler": (f"{R}.actor.profiler.enable=True {R}.actor.profiler.ranks=[0]", f"{R}.actor.profiler.enable"),
}


@pytest.mark.parametrize("line", VERL_LINES)
def test_a_command_line_of_verl_runs_or_names_the_key_that_cannot(line: str) -> None:
    text, refused = VERL_LINES[line]
    arguments = text.replace(", ", ",").split()
    files = ["data.train_files=a.parquet", f"{R}.model.path=m"]
    if not refused:
        assert load_config(["config=grpo", *arguments]).config.actor_rollout_ref.rollout.n == 4
        return
    with pytest.raises(ConfigError) as caught:
        load_config(["config=grpo", *files, *arguments])
    assert caught.value.key == refused


def test_a_package_path_is_found_without_importing_the_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "some_package_for_paths"
    package.mkdir()
    (package / "__init__.py").write_text("raise RuntimeError('imported')")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert resolve_path("pkg://some_package_for_paths/model/x.json") == str(package / "model/x.json")
    assert resolve_path("/a/b") == "/a/b"
    assert resolve_path("~/b") == str(Path.home() / "b")
    assert resolve_path("relative/b") == "relative/b"


@pytest.mark.parametrize("path", ["pkg://no_such_package_here/x", "pkg://asyncrl/../x", "pkg://", "pkg://asyncrl.nothing.at.all/x"])
def test_a_package_path_that_leads_nowhere_is_refused(path: str) -> None:
    with pytest.raises(ConfigError, match="pkg://"):
        resolve_path(path)


def test_debug_inline_takes_one_rank_and_says_so() -> None:
    loaded = load_config(["config=quickstart", "debug=inline"])
    assert (loaded.config.debug, loaded.config.trainer.nnodes, loaded.config.trainer.n_gpus_per_node) == ("inline", 1, 1)
    assert "debug=inline runs one rank: trainer.n_gpus_per_node=2 is taken as 1" in loaded.notices
    assert loaded.resolved["trainer"]["n_gpus_per_node"] == 1
    assert load_config(["config=quickstart", "debug=inline", "trainer.n_gpus_per_node=1"]).notices == []


def test_debug_takes_nothing_else() -> None:
    with pytest.raises(ConfigError, match=r"debug: got 'outline'; .*inline"):
        load_config(["config=quickstart", "debug=outline"])
