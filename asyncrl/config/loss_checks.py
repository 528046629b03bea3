"""What policy loss and rollout correction ask of each other and of the other options, and what is said about them at the start."""

from collections.abc import Iterator

import msgspec

from asyncrl.config.losses import AGGREGATES, BYPASS_LOSS, READS
from asyncrl.config.schema.actor import Actor
from asyncrl.config.schema.correction import BYPASS, BypassCorrection, RolloutCorrection, problems
from asyncrl.config.schema.root import Config
from asyncrl.errors import ConfigError

ACTOR, CORRECTION = "actor_rollout_ref.actor", "algorithm.rollout_correction"
LOSS = f"{ACTOR}.policy_loss.loss_mode"


def rollout_correction(config: Config) -> Iterator[ConfigError]:
    """Corrections that nothing would apply, and thresholds that fit no criterion."""
    correction, chosen = config.algorithm.rollout_correction, config.actor_rollout_ref.actor.policy_loss
    applied = chosen.loss == BYPASS_LOSS
    if applied and not correction.bypass_mode:
        allowed = f"allowed: true, as {LOSS}={BYPASS_LOSS} corrects from the engine's log-probs"
        yield ConfigError(f"{CORRECTION}.bypass_mode", False, allowed)
    elif correction.bypass_mode and not applied:
        allowed = f"with bypass_mode=true only {LOSS}={BYPASS_LOSS} applies it, not {chosen.loss}"
        if correction.rollout_is is not None:
            yield ConfigError(f"{CORRECTION}.rollout_is", correction.rollout_is, f"allowed: null; {allowed}")
        if correction.rollout_rs is not None:
            yield ConfigError(f"{CORRECTION}.rollout_rs", correction.rollout_rs, f"allowed: null; {allowed}")
    if not applied and correction.loss_type != RolloutCorrection().loss_type:
        allowed = f"allowed: {RolloutCorrection().loss_type}; it is the loss of {LOSS}={BYPASS_LOSS}, not of {chosen.loss}"
        yield ConfigError(f"{CORRECTION}.loss_type", correction.loss_type, allowed)
    for option, seen, allowed in problems(chosen.rollout_correction):
        yield ConfigError(f"{BYPASS}.{option}", seen, allowed)
    if (correction.bypass_mode or correction.decoupled) and not config.actor_rollout_ref.rollout.calculate_log_probs:
        allowed = f"allowed: true, as {CORRECTION} needs the engine's log-probs"
        yield ConfigError("actor_rollout_ref.rollout.calculate_log_probs", False, allowed)


def overlong(config: Config) -> Iterator[ConfigError]:
    """The penalty begins within an answer."""
    kwargs = config.reward.reward_kwargs
    buffer = kwargs.overlong_buffer_cfg
    if buffer.enable and buffer.len > kwargs.limit:
        allowed = f"allowed: at most reward.reward_kwargs.max_resp_len = {kwargs.limit}"
        yield ConfigError("reward.reward_kwargs.overlong_buffer_cfg.len", buffer.len, allowed)


def loss_remarks(config: Config) -> list[str]:
    """Options that the loss in use, or the correction in use, does not look at."""
    actor = config.actor_rollout_ref.actor
    return [*_aggregation(actor), *_unread(actor), *_idle_correction(config)]


def _aggregation(actor: Actor) -> Iterator[str]:
    own = AGGREGATES.get(actor.policy_loss.loss)
    if own is not None and own != actor.loss_agg_mode:
        yield f"{LOSS}={actor.policy_loss.loss} is aggregated by {own}: {ACTOR}.loss_agg_mode={actor.loss_agg_mode} does not reach it"


def _unread(actor: Actor) -> Iterator[str]:
    if actor.policy_loss.custom.path is not None:
        return
    loss, given, plain = actor.policy_loss.loss, _values(actor), _values(Actor())
    for name, losses in {"clip_ratio": READS["clip_ratio_low"], **READS}.items():
        if loss not in losses and given[name] != plain[name]:
            yield f"{ACTOR}.{name} has no effect on {loss}"


def _values(actor: Actor) -> dict[str, object]:
    of_loss = msgspec.structs.asdict(actor.policy_loss)
    return msgspec.structs.asdict(actor) | {f"policy_loss.{name}": value for name, value in of_loss.items()}


def _idle_correction(config: Config) -> Iterator[str]:
    correction, chosen = config.algorithm.rollout_correction, config.actor_rollout_ref.actor.policy_loss
    if chosen.loss == BYPASS_LOSS:
        own = chosen.rollout_correction
        if own.rollout_is is not None and own.loss == "ppo_clip":
            yield f"rollout_is={own.rollout_is} is only reported with loss_type=ppo_clip, whose ratio is the importance weight"
        yield from _without_switch(own, BYPASS)
        return
    yield from _without_switch(correction, CORRECTION)
    followed = msgspec.structs.asdict(correction)
    for name, value in msgspec.structs.asdict(chosen.rollout_correction).items():
        if value != followed[name]:
            yield f"{BYPASS}.{name} has no effect on {chosen.loss}"


def _without_switch(section: RolloutCorrection | BypassCorrection, name: str) -> Iterator[str]:
    """Options of a part that is off."""
    plain = RolloutCorrection()
    if section.rollout_is is None:
        if section.rollout_is_threshold != plain.rollout_is_threshold:
            yield f"{name}.rollout_is_threshold has no effect without rollout_is"
        if section.rollout_is_batch_normalize:
            yield f"{name}.rollout_is_batch_normalize has no effect without rollout_is"
    if section.rollout_rs is None:
        if section.rollout_rs_threshold is not None:
            yield f"{name}.rollout_rs_threshold has no effect without rollout_rs"
        if section.rejected_in_denominator:
            yield f"{name}.rejected_in_denominator has no effect without rollout_rs"
