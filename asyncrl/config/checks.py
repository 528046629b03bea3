"""Combinations of options that cannot run, and what is said at the start about those that can.

Everything that one section can check alone stands in its ``__post_init__``; here is what needs two sections.
"""

from collections.abc import Callable, Iterator

from asyncrl.config.estimators import COMPARING, READS, SQUARING, VALUING
from asyncrl.config.loss_checks import loss_remarks, overlong, rollout_correction
from asyncrl.config.mode_checks import mode_remarks, modes
from asyncrl.config.placement import Placement, check_ranks, engine_checks, engine_remarks
from asyncrl.config.schema.algorithm import Algorithm
from asyncrl.config.schema.root import Config
from asyncrl.errors import ConfigError

Check = Callable[[Config], Iterator[ConfigError]]


def batches(config: Config) -> Iterator[ConfigError]:
    """Prompts of a step, mini-batches, micro-batches."""
    actor, critic = config.actor_rollout_ref.actor, config.critic
    yield from _mini_batch(config, "actor_rollout_ref.actor", actor.ppo_mini_batch_size, actor.ppo_micro_batch_size_per_gpu)
    if config.need_critic and critic.mini_batch_size != actor.ppo_mini_batch_size:
        yield from _mini_batch(config, "critic", critic.mini_batch_size, critic.ppo_micro_batch_size_per_gpu)


def _mini_batch(config: Config, role: str, mini: int, micro: int | None) -> Iterator[ConfigError]:
    updates = config.trainer.v1.updates
    prompts = config.data.train_batch_size // updates
    name = f"{role}.ppo_mini_batch_size"
    share = "data.train_batch_size" if updates == 1 else "data.train_batch_size / parameter_sync_step"
    if mini > prompts:
        yield ConfigError(name, mini, f"allowed: at most {share} = {prompts}")
    elif prompts % mini:
        yield ConfigError(name, mini, f"allowed: a divisor of {share} = {prompts} (both count prompts)")
    rows = mini * config.actor_rollout_ref.rollout.n
    if micro is not None and micro > rows:
        allowed = f"allowed: at most the rows of a mini-batch, ppo_mini_batch_size x rollout.n = {rows}"
        yield ConfigError(f"{role}.ppo_micro_batch_size_per_gpu", micro, allowed)


def lengths(config: Config) -> Iterator[ConfigError]:
    """Limits of prompt and response, and of what the engine and a micro-batch hold."""
    data, rollout, actor = config.data, config.actor_rollout_ref.rollout, config.actor_rollout_ref.actor
    pairs = (
        ("prompt_length", rollout.prompt_length, data.max_prompt_length),
        ("response_length", rollout.response_length, data.max_response_length),
    )
    for name, seen, limit in pairs:
        if seen not in (None, limit):
            yield ConfigError(f"actor_rollout_ref.rollout.{name}", seen, f"allowed: null, or data.max_{name} = {limit}")
    longest = data.max_prompt_length + data.max_response_length
    total = f"data.max_prompt_length + data.max_response_length = {longest}"
    if rollout.max_model_len is not None and rollout.max_model_len < longest:
        yield ConfigError("actor_rollout_ref.rollout.max_model_len", rollout.max_model_len, f"allowed: null, or at least {total}")
    if rollout.max_num_batched_tokens < data.max_prompt_length:
        allowed = f"allowed: at least data.max_prompt_length = {data.max_prompt_length}"
        yield ConfigError("actor_rollout_ref.rollout.max_num_batched_tokens", rollout.max_num_batched_tokens, allowed)
    if actor.ppo_micro_batch_size_per_gpu is None and actor.ppo_max_token_len_per_gpu < longest:
        yield ConfigError(
            "actor_rollout_ref.actor.ppo_max_token_len_per_gpu", actor.ppo_max_token_len_per_gpu, f"allowed: at least {total}"
        )
    critic = config.critic
    if config.need_critic and critic.ppo_micro_batch_size_per_gpu is None and critic.ppo_max_token_len_per_gpu < longest:
        yield ConfigError("critic.ppo_max_token_len_per_gpu", critic.ppo_max_token_len_per_gpu, f"allowed: at least {total}")
    if config.need_critic and critic.forward_rows is None and critic.forward_tokens < longest:
        yield ConfigError("critic.forward_max_token_len_per_gpu", critic.forward_tokens, f"allowed: at least {total}")


def algorithm(config: Config) -> Iterator[ConfigError]:
    """Estimator, group size, clips."""
    roles, estimator = config.actor_rollout_ref, config.algorithm.estimator
    if roles.rollout.n == 1 and estimator in COMPARING:
        allowed = f"allowed: at least 2, as {estimator} compares the sessions of a prompt"
        yield ConfigError("actor_rollout_ref.rollout.n", 1, allowed)
    if estimator in VALUING and not config.need_critic:
        yield ConfigError("critic.enable", False, f"allowed: null or true, as {estimator} needs a critic's values")
    if estimator in SQUARING and config.algorithm.rollout_correction.bypass_mode:
        allowed = f"allowed: false, as {estimator} needs what the pass for old_log_probs gives"
        yield ConfigError("algorithm.rollout_correction.bypass_mode", True, allowed)
    for role, clip, used in (
        ("actor_rollout_ref.actor", roles.actor.grad_clip, roles.actor.optim.clip_grad),
        ("critic", config.critic.grad_clip, config.critic.optim.clip_grad),
    ):
        if clip is not None and clip != used:
            allowed = f"allowed: null, or {role}.optim.clip_grad = {used:g}, which is the one that counts"
            yield ConfigError(f"{role}.grad_clip", clip, allowed)


def saving(config: Config) -> Iterator[ConfigError]:
    """One checkpoint holds policy and critic, so one number says how many stay."""
    policy, critic = config.trainer.max_actor_ckpt_to_keep, config.trainer.max_critic_ckpt_to_keep
    if critic not in (None, policy):
        allowed = f"allowed: null, or trainer.max_actor_ckpt_to_keep = {policy}: one checkpoint holds both"
        yield ConfigError("trainer.max_critic_ckpt_to_keep", critic, allowed)


def validation(config: Config) -> Iterator[ConfigError]:
    """Validation needs prompts when it is asked for."""
    trainer = config.trainer
    if config.data.val_files:
        return
    if trainer.val_only:
        yield ConfigError("trainer.val_only", True, "allowed: false while data.val_files is empty")
    if trainer.test_freq > 0:
        yield ConfigError("trainer.test_freq", trainer.test_freq, "allowed: -1 while data.val_files is empty")


CHECKS: tuple[Check, ...] = (modes, engine_checks, batches, lengths, algorithm, rollout_correction, overlong, saving, validation)


def problems(config: Config) -> list[ConfigError]:
    """Every broken combination."""
    return [problem for check in CHECKS for problem in check(config)]


def check(config: Config) -> None:
    """Raise the first broken combination; the others are notes on it (``__notes__``)."""
    found = problems(config)
    if found:
        for other in found[1:]:
            found[0].add_note(f"also {other}")
        raise found[0]


def check_world(config: Config, world_size: int, nodes: int) -> None:
    """Compare with what torchrun started. Raises :class:`ConfigError` with both numbers where they differ."""
    check_ranks(config, world_size, nodes)
    trainers = len(Placement.of(config, world_size, nodes).trainers)
    for section, size in (
        ("actor_rollout_ref.actor.fsdp_config", config.actor_rollout_ref.actor.fsdp_config.fsdp_size),
        ("critic.fsdp", config.critic.fsdp.fsdp_size),
    ):
        if 0 < size < trainers and trainers % size:
            raise ConfigError(f"{section}.fsdp_size", size, f"allowed: -1, or a divisor of the {trainers} ranks that train")


def remarks(config: Config) -> list[str]:
    """What the user should know at the start although it runs."""
    rollout, actor = config.actor_rollout_ref.rollout, config.actor_rollout_ref.actor
    said = []
    if rollout.top_p < 1.0 or rollout.top_k > 0:
        said.append(
            f"actor_rollout_ref.rollout.top_p={rollout.top_p:g}, top_k={rollout.top_k}: log-probs are not those of the sampled distribution"
        )
    if actor.use_kl_loss and config.algorithm.use_kl_in_reward:
        said.append("actor_rollout_ref.actor.use_kl_loss and algorithm.use_kl_in_reward: the KL to the reference counts twice")
    said += [*_unread(config.algorithm), *loss_remarks(config), *mode_remarks(config), *engine_remarks(config)]
    if config.trainer.critic_warmup > 1 and not config.need_critic:
        said.append(f"trainer.critic_warmup={config.trainer.critic_warmup} without a critic: nothing learns before that step")
    val = rollout.val_kwargs
    if val.temperature == 0.0 and val.n > 1:
        said.append(f"actor_rollout_ref.rollout.val_kwargs.n={val.n} at temperature 0: all answers to a prompt are the same")
    if val.temperature > 0.0 and not val.do_sample:
        said.append(f"actor_rollout_ref.rollout.val_kwargs.temperature={val.temperature:g}: validation samples although do_sample is false")
    return said


def _unread(algorithm: Algorithm) -> list[str]:
    """Options of estimators other than the one in use, and what the one in use does not see."""
    estimator, plain = algorithm.estimator, Algorithm()
    if algorithm.custom_adv_estimator.path is not None:
        return []
    changed = {
        "gamma": algorithm.gamma != plain.gamma,
        "lam": algorithm.lam != plain.lam,
        "norm_adv_by_std_in_grpo": algorithm.norm_adv_by_std_in_grpo != plain.norm_adv_by_std_in_grpo,
        "gdpo_reward_keys": algorithm.gdpo_reward_keys is not None,
    }
    said = [f"algorithm.{name} has no effect on {estimator}" for name, given in changed.items() if given and estimator not in READS[name]]
    if algorithm.use_kl_in_reward and algorithm.components and estimator == "gdpo":
        said.append("algorithm.use_kl_in_reward has no effect on gdpo with gdpo_reward_keys: their parts are what it compares")
    return said
