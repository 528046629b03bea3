"""verl's options that asyncrl has no use for: which are passed over with a notice, and which are refused.

``verl_options.csv`` beside this file holds dotted name and default of every option of verl 0.9.1 (the leaves of its generated
trainer configuration, and those that exist only in its dataclasses or code). An option that is not in our schema is

- passed over when it has no effect on numbers: Ray, switches of verl's older trainer, what verl itself does not read, knobs of
  engines that are not used, parts whose main switch is off (the switch itself is refused when on);
- passed over when its value is verl's default, which is what asyncrl does;
- refused otherwise.
"""

import ast
import csv
from collections.abc import Mapping
from fnmatch import fnmatchcase
from functools import cache
from importlib.resources import files
from types import MappingProxyType
from typing import Any

from asyncrl.config.names import options
from asyncrl.config.suggest import did_you_mean
from asyncrl.errors import ConfigError

REQUIRED: Mapping[str, tuple[tuple[Any, ...], str]] = MappingProxyType(
    {
        "trainer.use_v1": ((True,), "asyncrl has the semantics of verl's V1 trainer only"),
        "transfer_queue.enable": ((True,), "trajectories always travel through the TransferQueue"),
        "model_engine": (("dp", "fsdp", "fsdp2"), "models are trained by FSDP2 only"),
        "actor_rollout_ref.ref.strategy": (("fsdp", "fsdp2"), "models are sharded by FSDP2 only"),
        "actor_rollout_ref.actor.fsdp_config.strategy": (("fsdp", "fsdp2"), "models are sharded by FSDP2 only"),
        "actor_rollout_ref.ref.fsdp_config.strategy": (("fsdp", "fsdp2"), "models are sharded by FSDP2 only"),
        "critic.fsdp.strategy": (("fsdp", "fsdp2"), "models are sharded by FSDP2 only"),
        "reward.reward_manager.name": (
            ("naive", "dapo"),
            "reward.reward_kwargs.overlong_buffer_cfg.enable says whether long answers are penalised",
        ),
    }
)
"""Options with the only values that are passed over, and why."""

SWITCHES = (
    "reward.reward_model.enable",
    "distillation.enabled",
    "*.profiler.enable",
    "global_profiler.steps",
    "skip.rollout_tq.enable",
    "*.qat.enable",
    "*.model.mtp.enable*",
    "*.model.lora.rank",
    "*.model.lora.adapter_path",
    "actor_rollout_ref.rollout.disaggregation.enabled",
    "actor_rollout_ref.rollout.prometheus.enable",
    "reward.sandbox_fusion.url",
    "transfer_queue.metrics.enabled",
    "trainer.v1.separate_async.hybrid_rollout.enable_switch",
)
"""Main switches of parts: only verl's default (off) is passed over."""

NO_EFFECT: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "Ray only": ("ray_kwargs.*", "trainer.ray_wait_register_center_timeout"),
        "a switch of verl's older trainer": (
            "trainer.balance_batch",
            "trainer.esi_redundant_time",
            "trainer.use_legacy_worker_impl",
            "skip.rollout.*",
            "skip.async_rollout.*",
            "actor_rollout_ref.actor.use_prefix_grouper",
        ),
        "verl does not read it either": (
            "actor_rollout_ref.actor.freeze_vision_tower",
            "actor_rollout_ref.actor.calculate_sum_pi_squared",
            "actor_rollout_ref.actor.use_rollout_log_probs",
            "actor_rollout_ref.nccl_timeout",
            "critic.nccl_timeout",
            "actor_rollout_ref.rollout.over_sample_rate",
            "actor_rollout_ref.rollout.trace.*",
            "actor_rollout_ref.rollout.agent.custom_async_server.*",
            "actor_rollout_ref.rollout.checkpoint_manager_class",
            "actor_rollout_ref.rollout.do_sample",
            "actor_rollout_ref.rollout.multi_turn.enable",
            "data.truncation",
            "data.return_*",
            "data.filter_prompts",
            "transfer_queue.controller.*",
        ),
        "it does not change results": (
            "*.use_torch_compile",
            "data.dataloader_num_workers",
            "data.filter_overlong_prompts_workers",
            "data.cache_dir",
        ),
        "a knob of FSDP1": (
            "*.fsdp_config.forward_prefetch",
            "*.fsdp_config.use_orig_params",
            "*.fsdp_config.wrap_policy.min_num_params",
            "critic.fsdp.forward_prefetch",
            "critic.fsdp.use_orig_params",
            "critic.fsdp.wrap_policy.min_num_params",
        ),
        "it is actor_rollout_ref.rollout.n": ("critic.rollout_n",),
        "the embedded engine has no such knob": (
            "actor_rollout_ref.rollout.gpu_memory_utilization",
            "actor_rollout_ref.rollout.enforce_eager",
            "actor_rollout_ref.rollout.cudagraph_capture_sizes",
            "actor_rollout_ref.rollout.enable_chunked_prefill",
            "actor_rollout_ref.rollout.enable_prefix_caching",
            "actor_rollout_ref.rollout.load_format",
            "actor_rollout_ref.rollout.layered_summon",
            "actor_rollout_ref.rollout.disable_log_stats",
            "actor_rollout_ref.rollout.skip_tokenizer_init",
            "actor_rollout_ref.rollout.enable_sleep_mode",
            "actor_rollout_ref.rollout.multi_stage_wake_up",
            "actor_rollout_ref.rollout.engine_kwargs.*",
            "actor_rollout_ref.rollout.server.*",
            "actor_rollout_ref.rollout.checkpoint_engine.engine_kwargs",
        ),
        "its part is switched off": (
            "reward.reward_model.*",
            "reward.sandbox_fusion.*",
            "distillation.*",
            "*.profiler.*",
            "global_profiler.*",
            "skip.rollout_tq.*",
            "*.qat.*",
            "*.turbo_config.*",
            "*.model.mtp.*",
            "*.model.lora.*",
            "*.model.lora_alpha",
            "*.model.target_modules",
            "*.model.exclude_modules",
            "*.model.fused_kernel_options.*",
            "actor_rollout_ref.rollout.multi_turn.*",
            "actor_rollout_ref.rollout.disaggregation.*",
            "actor_rollout_ref.rollout.prometheus.*",
            "algorithm.pf_ppo.*",
            "reward.max_*",
            "reward.estimated_tokens_per_request",
            "trainer.v1.separate_async.hybrid_rollout.*",
            "transfer_queue.metrics.*",
            "transfer_queue.backend.MooncakeStore.*",
            "transfer_queue.backend.Yuanrong.*",
        ),
    }
)
"""Options passed over whatever their value, by reason."""

ADVICE: Mapping[str, str] = MappingProxyType(
    {
        "actor_rollout_ref.rollout.seed": "use trainer.seed",
        "reward_model.*": "use reward.*",
        "custom_reward_function.path": "use reward.custom_reward_function.path",
        "custom_reward_function.name": "use reward.custom_reward_function.name",
        "sandbox_fusion.*": "use reward.sandbox_fusion.*",
        "actor_rollout_ref.actor.ppo_micro_batch_size": "use actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu",
        "critic.ppo_micro_batch_size": "use critic.ppo_micro_batch_size_per_gpu",
        "critic.forward_micro_batch_size": "use critic.forward_micro_batch_size_per_gpu",
        "critic.ppo_infer_*": "use critic.forward_max_token_len_per_gpu or critic.forward_micro_batch_size_per_gpu",
        "*.log_prob_micro_batch_size": "use log_prob_micro_batch_size_per_gpu",
        "*.optim.warmup_style": "use lr_scheduler_type",
    }
)
"""What to use in place of a refused option."""

_EXTRA = {"model_engine": "dp", "trainer.use_legacy_worker_impl": "auto"}
_WORDS = {"null": None, "None": None, "true": True, "false": False, "True": True, "False": False}


@cache
def defaults() -> Mapping[str, str]:
    """verl's options and their defaults as the text of the shipped table."""
    text = files("asyncrl.config").joinpath("verl_options.csv").read_text(encoding="utf-8")
    rows = csv.DictReader(text.splitlines())
    return MappingProxyType({**{row["dotted_name"]: row["default"] for row in rows}, **_EXTRA})


def default_of(name: str) -> Any:
    """verl's default as a value; an interpolation gives the default of what it points to. Raises ``KeyError`` for no option."""
    text = defaults()[name]
    if not text.startswith("${"):
        return _literal(text)
    inner = text.removeprefix("${").removesuffix("}")
    if inner.startswith("."):
        return default_of(f"{name.rpartition('.')[0]}{inner}")
    target, _, fallback = inner.removeprefix("oc.select:").partition(",")
    if target in defaults():
        return default_of(target)
    return _literal(fallback.strip()) if fallback else None


def _literal(text: str) -> Any:
    if text in _WORDS:
        return _WORDS[text]
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text


def known_name(name: str) -> str | None:
    """The option of verl that a dotted name belongs to: itself, the table it lies in, or a table that starts with it."""
    parts = name.split(".")
    for length in range(len(parts), 0, -1):
        above = ".".join(parts[:length])
        if above in defaults() and above not in options():
            return above
        if length > 1 and f"{above}.*" in defaults():
            return f"{above}.*"
    inside = any(other.startswith(f"{name}.") for other in defaults())
    return name if inside or name.startswith("ray_kwargs.") else None


def in_verl(name: str) -> bool:
    """Whether verl has an option of this name, be it as a part of a table."""
    parts = name.split(".")
    return name in defaults() or any(f"{'.'.join(parts[:length])}.*" in defaults() for length in range(1, len(parts)))


def judge(name: str, value: Any, *, critic: bool = True) -> str:
    """The notice for an option of verl that is passed over; ``critic``: whether there is one.

    Raises :class:`ConfigError` for one that cannot be, and for a name that is neither verl's nor ours.
    """
    option = known_name(name)
    if option is None:
        raise ConfigError(name, value, "there is no such option", did_you_mean(name, defaults()))
    if not critic and name.startswith("critic."):
        return switched_off(name, value)
    if name in REQUIRED:
        accepted, reason = REQUIRED[name]
        if value not in accepted:
            raise ConfigError(name, value, f"{reason}; allowed: {', '.join(map(_shown, accepted))}")
        return f"{name}={_shown(value)}: {reason}"
    off = any(fnmatchcase(name, pattern) for pattern in SWITCHES)
    reason = next((why for why, patterns in NO_EFFECT.items() if any(fnmatchcase(name, p) for p in patterns)), "")
    if reason and not off:
        return f"{name}={_shown(value)} has no effect: {reason}"
    if option == name and option in defaults() and _same(value, default_of(option)):
        return f"{name}={_shown(value)} is what asyncrl does"
    raise _refused(name, value)


def switched_off(name: str, value: Any) -> str:
    """The notice for an option of a part that is not there."""
    return f"{name}={_shown(value)} has no effect: its part is switched off"


def _refused(name: str, value: Any) -> ConfigError:
    advice = next((text for pattern, text in ADVICE.items() if fnmatchcase(name, pattern)), "")
    default = _shown(default_of(name)) if name in defaults() and defaults()[name] != "-" else ""
    allowed = f"leave it out, or verl's default ({default})" if default else "leave it out"
    return ConfigError(name, value, f"an option of verl that asyncrl does not have yet; {allowed}", advice)


def _same(value: Any, default: Any) -> bool:
    if isinstance(value, bool) or isinstance(default, bool) or value is None or default is None:
        return value is default
    return bool(value == default)


def _shown(value: Any) -> str:
    return "null" if value is None else str(value).lower() if isinstance(value, bool) else str(value)
