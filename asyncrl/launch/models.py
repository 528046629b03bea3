"""The models of one rank: policy, reference and rollout engine, built on the device thread."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed import Store  # type: ignore[attr-defined]

from asyncrl.algorithms.advantages import AdvantageOptions
from asyncrl.config.placement import separate
from asyncrl.config.places import resolve_path
from asyncrl.config.schema import Config
from asyncrl.config.schema.critic import CriticOptim
from asyncrl.config.schema.fsdp import FsdpConfig
from asyncrl.config.schema.optim import Optim
from asyncrl.launch.estimator import open_estimator
from asyncrl.launch.policy_loss import correction_options, denominator, open_objective
from asyncrl.rollout.engine import RolloutEngine
from asyncrl.training.fsdp import FSDPEngine
from asyncrl.training.fsdp_values import FSDPValueEngine
from asyncrl.training.microbatch import MicroBatching
from asyncrl.training.model import ModelConfig
from asyncrl.training.optimizer import OptimizerConfig
from asyncrl.workers.advantages import AdvantageSettings
from asyncrl.workers.critic import CriticSettings
from asyncrl.workers.engine_process import EngineRecipe
from asyncrl.workers.policy import PolicySettings

FORMATS = {"fp32": "float32", "bf16": "bfloat16", "fp16": "float16"}


@dataclass(frozen=True, slots=True)
class Models:
    """What a rank that trains holds. The engine, where it lives here, owns its weights; they are never the trainer's tensors."""

    policy: FSDPEngine
    reference: FSDPEngine | None
    critic: FSDPValueEngine | None
    rollout: RolloutEngine | None
    pad_token_id: int


def join_group(store: Store, rank: int, trainers: Sequence[int]) -> None:
    """Join the process group of the ranks that train. Blocking; on the device thread, as everything collective."""
    backend = "nccl" if torch.cuda.is_available() else "gloo"
    dist.init_process_group(backend, store=store, rank=trainers.index(rank), world_size=len(trainers))


def leave_group() -> None:
    """Leave the process group."""
    dist.destroy_process_group()


def device_of(config: Config, local_rank: int) -> str:
    """The device of a rank: as configured, else a GPU of its own where there is one, else the CPU."""
    kind = config.trainer.device or ("cuda" if torch.cuda.is_available() else "cpu")
    return f"cuda:{local_rank}" if kind == "cuda" else "cpu"


def build_models(config: Config, device: str, total_steps: int) -> Models:
    """Read and shard the policy and, where something needs them, reference and critic; read the model of an engine here. Collective."""
    torch.manual_seed(config.trainer.seed)
    roles = config.actor_rollout_ref
    policy = FSDPEngine(_model(config, roles.actor.fsdp_config, device, trainable=True), _optimizer(roles.actor.optim, total_steps))
    reference = None
    if config.need_reference:
        reference = FSDPEngine(_model(config, roles.ref.fsdp_config, device, trainable=False))
    critic = None
    if config.need_critic:
        critic = FSDPValueEngine(_critic_model(config, device), _optimizer(config.critic.optim, total_steps), config.trainer.seed)
    rollout = None if separate(config) else engine_recipe(config, device).open()
    return Models(policy, reference, critic, rollout, _pad_token_id(resolve_path(roles.model.path)))


def engine_recipe(config: Config, device: str) -> EngineRecipe:
    """The engine of the configuration, on ``device``."""
    model, rollout = config.actor_rollout_ref.model, config.actor_rollout_ref.rollout
    custom = rollout.custom_engine
    return EngineRecipe(
        folder=resolve_path(model.path),
        device=device,
        dtype=_dtype(rollout.dtype, device),
        max_num_seqs=rollout.max_num_seqs,
        max_model_len=rollout.model_limit,
        max_num_batched_tokens=rollout.max_num_batched_tokens,
        full_determinism=rollout.full_determinism,
        trust_remote_code=model.trust_remote_code,
        custom=None if custom.path is None or custom.name is None else (resolve_path(custom.path), custom.name),
    )


def policy_settings(config: Config) -> PolicySettings:
    """What the policy worker needs to know, from the configuration."""
    actor, rollout = config.actor_rollout_ref.actor, config.actor_rollout_ref.rollout
    packed = config.actor_rollout_ref.model.use_remove_padding
    return PolicySettings(
        objective=open_objective(config),
        correction=correction_options(config),
        denominator=denominator(config),
        advantages=advantage_settings(config),
        seed=config.trainer.seed,
        temperature=rollout.temperature,
        epochs=actor.ppo_epochs,
        update_micro=_micro(actor.ppo_micro_batch_size_per_gpu, actor.use_dynamic_bsz, actor.ppo_max_token_len_per_gpu, packed),
        evaluate_micro=_micro(rollout.log_prob_micro_batch_size_per_gpu, rollout.dynamic, rollout.token_budget, packed),
        loss_scale_factor=actor.loss_scale,
        compare_rollout=rollout.calculate_log_probs,
        use_entropy=actor.calculate_entropy or actor.entropy_coeff != 0,
    )


def advantage_settings(config: Config) -> AdvantageSettings:
    """The advantage estimator of the configuration, with what it may read."""
    algorithm = config.algorithm
    options = AdvantageOptions(
        gamma=algorithm.gamma,
        lam=algorithm.lam,
        normalise_by_std=algorithm.norm_adv_by_std_in_grpo,
        components=algorithm.components,
    )
    correction = algorithm.rollout_correction
    return AdvantageSettings(
        estimator=open_estimator(config),
        options=options,
        kl_in_reward=algorithm.use_kl_in_reward,
        importance_weights=correction.decoupled and correction.rollout_is is not None,
    )


def critic_settings(config: Config) -> CriticSettings:
    """What the critic worker needs to know, from the configuration."""
    critic, packed = config.critic, config.critic.model.use_remove_padding
    return CriticSettings(
        # What the policy's own loss rejects is not rejected for the critic.
        denominator="response_mask" if correction_options(config) is None else denominator(config),
        cliprange_value=critic.cliprange_value,
        loss_agg_mode=critic.aggregation,
        loss_scale_factor=critic.loss_scale,
        epochs=critic.epochs,
        update_micro=_micro(critic.ppo_micro_batch_size_per_gpu, critic.dynamic, critic.ppo_max_token_len_per_gpu, packed),
        evaluate_micro=_micro(critic.forward_rows, critic.dynamic, critic.forward_tokens, packed),
    )


def reference_micro(config: Config) -> MicroBatching:
    """How the reference cuts its rows."""
    ref, packed = config.actor_rollout_ref.ref, config.actor_rollout_ref.model.use_remove_padding
    return _micro(ref.log_prob_micro_batch_size_per_gpu, ref.dynamic, ref.token_budget, packed)


def _micro(rows: int | None, dynamic: bool, budget: int, packed: bool) -> MicroBatching:
    if rows is None or dynamic:
        return MicroBatching(max_tokens=budget, packed=packed)
    return MicroBatching(rows=rows, packed=packed)


def _model(config: Config, fsdp: FsdpConfig, device: str, *, trainable: bool) -> ModelConfig:
    model = config.actor_rollout_ref.model
    return ModelConfig(
        path=resolve_path(model.path),
        trainable=trainable,
        device=device,
        model_dtype=FORMATS.get(fsdp.model_dtype, fsdp.model_dtype),
        compute_dtype=_dtype(fsdp.dtype, device),
        fsdp_size=fsdp.fsdp_size,
        reshard_after_forward=fsdp.reshard_after_forward,
        enable_gradient_checkpointing=trainable and model.enable_gradient_checkpointing,
        trust_remote_code=model.trust_remote_code,
    )


def _critic_model(config: Config, device: str) -> ModelConfig:
    model, policy, fsdp = config.critic.model, config.actor_rollout_ref.model, config.critic.fsdp
    return ModelConfig(
        path=resolve_path(model.path or policy.path),
        device=device,
        model_dtype=FORMATS.get(fsdp.model_dtype, fsdp.model_dtype),
        compute_dtype=_dtype(fsdp.dtype, device),
        fsdp_size=fsdp.fsdp_size,
        reshard_after_forward=fsdp.reshard_after_forward,
        enable_gradient_checkpointing=model.enable_gradient_checkpointing,
        # Whoever trusts the policy's folder has trusted this one.
        trust_remote_code=model.trust_remote_code or (model.path is None and policy.trust_remote_code),
    )


def _optimizer(optim: Optim | CriticOptim, total_steps: int) -> OptimizerConfig:
    return OptimizerConfig(
        lr=optim.lr,
        optimizer=optim.optimizer,
        betas=optim.betas,
        weight_decay=optim.weight_decay,
        clip_grad=optim.clip_grad,
        lr_scheduler_type=optim.lr_scheduler_type,
        lr_warmup_steps=optim.lr_warmup_steps,
        lr_warmup_steps_ratio=optim.lr_warmup_steps_ratio,
        total_training_steps=total_steps if optim.total_training_steps < 0 else optim.total_training_steps,
        min_lr_ratio=optim.min_lr_ratio,
        num_cycles=optim.num_cycles,
        zero_indexed_step=optim.zero_indexed_step,
    )


def _dtype(given: str | None, device: str) -> str:
    if given is None:
        return "float32" if device == "cpu" else "bfloat16"
    return FORMATS.get(given, given)


def _pad_token_id(folder: str) -> int:
    """The pad token of the model, or 0: padding rows are masked, any known token serves."""
    config = json.loads((Path(folder) / "config.json").read_text(encoding="utf-8"))
    return int(config.get("pad_token_id") or 0)
