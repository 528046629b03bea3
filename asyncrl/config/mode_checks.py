"""What the mode of the loop asks of the other options, and what is said of it at the start."""

from collections.abc import Iterator

from asyncrl.config.schema.algorithm import FilterGroups
from asyncrl.config.schema.root import Config
from asyncrl.config.schema.trainer import Sampler
from asyncrl.errors import ConfigError

MODE = "trainer.v1"
SAMPLER, FILTER = f"{MODE}.sampler", "algorithm.filter_groups"


def modes(config: Config) -> Iterator[ConfigError]:
    """Local updates, look-ahead and staleness, and the filter of groups."""
    v1, prompts = config.trainer.v1, config.data.train_batch_size
    if prompts % v1.updates:
        allowed = f"allowed: a divisor of data.train_batch_size = {prompts} (local updates of a step)"
        yield ConfigError(f"{MODE}.separate_async.parameter_sync_step", v1.updates, allowed)
    if v1.trainer_mode != "sync" and v1.custom_schedule.path is None and (allowed := waits_too_far_ahead(v1.sampler, v1.lookahead)):
        yield ConfigError(f"{MODE}.{v1.trainer_mode}.num_warmup_batches", v1.lookahead, allowed)
    rule = config.algorithm.filter_groups
    if rule.enable and config.actor_rollout_ref.rollout.n == 1:
        yield ConfigError(
            "algorithm.filter_groups.enable", True, "allowed with actor_rollout_ref.rollout.n of at least 2: it compares sessions"
        )


def waits_too_far_ahead(sampler: Sampler, lookahead: float) -> str:
    """What is allowed where ``wait`` could not keep its bound with this look-ahead; nothing where it can, or is not the rule."""
    threshold = sampler.max_off_policy_threshold
    if sampler.custom_sampler.path is not None or sampler.max_off_policy_strategy != "wait" or threshold is None:
        return ""
    bound = f"at most max_off_policy_threshold - 1 = {threshold - 1}"
    return f"allowed under max_off_policy_strategy=wait: {bound}" if lookahead > threshold - 1 else ""


def mode_remarks(config: Config) -> list[str]:
    """What the mode does not bound or correct, and which options it does not read."""
    v1, correction = config.trainer.v1, config.algorithm.rollout_correction
    said = _unread(config)
    if v1.trainer_mode == "sync":
        return said
    if correction.rollout_is is None and correction.rollout_rs is None:
        said.append(f"{MODE}.trainer_mode={v1.trainer_mode}: off-policy correction: none (algorithm.rollout_correction)")
    threshold = v1.sampler.max_off_policy_threshold
    if v1.sampler.custom_sampler.path is not None:
        return said
    if threshold is None:
        said.append(f"{SAMPLER}.max_off_policy_threshold=null: nothing bounds how old trained tokens are")
    elif v1.sampler.max_off_policy_strategy == "drop" and v1.lookahead > threshold - 1:
        said.append(
            f"{MODE}.{v1.trainer_mode}.num_warmup_batches={v1.lookahead:g} with max_off_policy_threshold={threshold}: "
            "part of what is generated will be too old and dropped"
        )
    return said


def _unread(config: Config) -> list[str]:
    """Options of the sampler and the filter that were given, and that nothing reads."""
    v1, rule, plain = config.trainer.v1, config.algorithm.filter_groups, Sampler()
    refill, inflight = v1.sampler.sync_refill_failed_groups, rule.max_inflight_gen_batches != FilterGroups().max_inflight_gen_batches
    if v1.sampler.custom_sampler.path is not None:
        changed = {
            f"{SAMPLER}.max_off_policy_threshold": v1.sampler.max_off_policy_threshold != plain.max_off_policy_threshold,
            f"{SAMPLER}.max_off_policy_strategy": v1.sampler.max_off_policy_strategy != plain.max_off_policy_strategy,
            f"{SAMPLER}.sync_refill_failed_groups": refill,
            f"{FILTER}.enable": rule.enable,
            f"{FILTER}.max_inflight_gen_batches": inflight,
        }
        return [f"{name} has no effect: {v1.sampler.custom_sampler.name} chooses the groups" for name, given in changed.items() if given]
    said = [f"{SAMPLER}.sampler_kwargs has no effect without custom_sampler"] if v1.sampler.sampler_kwargs else []
    if not rule.enable:
        filtering = {"max_num_gen_batches": rule.max_num_gen_batches > 0, "max_inflight_gen_batches": inflight}
        said += [f"{FILTER}.{name} has no effect without {FILTER}.enable" for name, given in filtering.items() if given]
    if v1.trainer_mode != "sync" and v1.custom_schedule.path is None:
        if refill:
            said.append(f"{SAMPLER}.sync_refill_failed_groups has no effect: {v1.trainer_mode} replaces every group with a failed session")
        if rule.enable and inflight:
            said.append(
                f"{FILTER}.max_inflight_gen_batches has no effect: in {v1.trainer_mode} num_warmup_batches bounds what is in flight"
            )
    return said
