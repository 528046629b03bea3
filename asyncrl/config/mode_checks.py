"""What the mode of the loop asks of the other options, and what is said of it at the start."""

from collections.abc import Iterator

from asyncrl.config.schema.root import Config
from asyncrl.errors import ConfigError

MODE = "trainer.v1"


def modes(config: Config) -> Iterator[ConfigError]:
    """Local updates, look-ahead and staleness, and the filter of groups."""
    v1, prompts = config.trainer.v1, config.data.train_batch_size
    if prompts % v1.updates:
        allowed = f"allowed: a divisor of data.train_batch_size = {prompts} (local updates of a step)"
        yield ConfigError(f"{MODE}.separate_async.parameter_sync_step", v1.updates, allowed)
    threshold, name = v1.sampler.max_off_policy_threshold, f"{MODE}.{v1.trainer_mode}.num_warmup_batches"
    if (
        v1.trainer_mode != "sync"
        and v1.sampler.max_off_policy_strategy == "wait"
        and threshold is not None
        and v1.lookahead > threshold - 1
    ):
        allowed = f"allowed under max_off_policy_strategy=wait: at most max_off_policy_threshold - 1 = {threshold - 1}"
        yield ConfigError(name, v1.lookahead, allowed)
    rule = config.algorithm.filter_groups
    if rule.enable and config.actor_rollout_ref.rollout.n == 1:
        yield ConfigError(
            "algorithm.filter_groups.enable", True, "allowed with actor_rollout_ref.rollout.n of at least 2: it compares sessions"
        )


def mode_remarks(config: Config) -> list[str]:
    """What the mode does not bound or correct."""
    v1, correction = config.trainer.v1, config.algorithm.rollout_correction
    if v1.trainer_mode == "sync":
        return []
    said = []
    if correction.rollout_is is None and correction.rollout_rs is None:
        said.append(f"{MODE}.trainer_mode={v1.trainer_mode}: off-policy correction: none (algorithm.rollout_correction)")
    threshold = v1.sampler.max_off_policy_threshold
    if threshold is None:
        said.append(f"{MODE}.sampler.max_off_policy_threshold=null: nothing bounds how old trained tokens are")
    elif v1.sampler.max_off_policy_strategy == "drop" and v1.lookahead > threshold - 1:
        said.append(
            f"{MODE}.{v1.trainer_mode}.num_warmup_batches={v1.lookahead:g} with max_off_policy_threshold={threshold}: "
            "part of what is generated will be too old and dropped"
        )
    return said
