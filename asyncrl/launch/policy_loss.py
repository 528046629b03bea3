"""What the policy minimises, and how the engine's log-probs are corrected, from the configuration."""

from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from typing import Any

from asyncrl.algorithms.losses import POLICY_LOSSES, AnyPolicyLossKind, as_policy_loss, loss_options, options_of
from asyncrl.algorithms.objective import ObjectiveConfig
from asyncrl.algorithms.rollout_correction import RolloutCorrectionOptions
from asyncrl.config.losses import BYPASS_LOSS
from asyncrl.config.places import resolve_path
from asyncrl.config.schema import Config
from asyncrl.config.schema.actor import Actor, CustomPolicyLoss
from asyncrl.config.schema.correction import BypassCorrection
from asyncrl.errors import ConfigError
from asyncrl.rewards.load import load_object

SECTION = "actor_rollout_ref.actor.policy_loss.custom"


def open_objective(config: Config) -> ObjectiveConfig:
    """The objective of ``actor_rollout_ref.actor``.

    Raises ConfigError for a loss of the user that cannot be found, that is of another kind or signature, or whose options are
    not those that it takes.
    """
    actor = config.actor_rollout_ref.actor
    kind, options = open_policy_loss(actor)
    return ObjectiveConfig(
        policy_loss=kind,
        options=options,
        loss_agg_mode=actor.loss_agg_mode,
        entropy_coeff=actor.entropy_coeff,
        use_kl_loss=actor.use_kl_loss,
        kl_loss_coef=actor.kl_loss_coef,
        kl_loss_type=actor.kl_loss_type,
    )


def open_policy_loss(actor: Actor) -> tuple[AnyPolicyLossKind, Any]:
    """The policy loss and its options. Raises ConfigError as ``open_objective``."""
    name, custom = actor.policy_loss.loss_mode, actor.policy_loss.custom
    if custom.path is None:
        return POLICY_LOSSES[name], loss_options(name, _settings(actor))
    try:
        kind = as_policy_loss(load_object(resolve_path(custom.path), custom.name, SECTION))
    except TypeError as error:
        raise ConfigError(f"{SECTION}.name", custom.name, str(error)) from error
    return kind, _own_options(kind, custom, _settings(actor))


def correction_options(config: Config) -> RolloutCorrectionOptions | None:
    """What a stage before the advantages corrects; None where there is nothing to do, or the loss does it."""
    given = config.algorithm.rollout_correction
    if not given.decoupled:
        return None
    return RolloutCorrectionOptions(
        rollout_is=given.rollout_is,
        rollout_is_threshold=given.rollout_is_threshold,
        rollout_is_batch_normalize=given.rollout_is_batch_normalize,
        rollout_rs=given.rollout_rs,
        rollout_rs_threshold=given.rollout_rs_threshold,
        loss_type=given.loss_type,
        rejected_in_denominator=given.rejected_in_denominator,
    )


def denominator(config: Config) -> str:
    """The mask whose ones and rows losses are divided by, once something was rejected."""
    chosen, correction = config.actor_rollout_ref.actor.policy_loss, config.algorithm.rollout_correction
    if chosen.loss == BYPASS_LOSS:
        own = chosen.rollout_correction
        return "loss_mask" if own.rejects and own.keeps_denominator else "response_mask"
    return "loss_mask" if correction.decoupled and correction.rejects and correction.rejected_in_denominator else "response_mask"


def _own_options(kind: AnyPolicyLossKind, custom: CustomPolicyLoss, settings: Mapping[str, Any]) -> Any:
    """A dict of the user's own; or an options class, whose fields may also be options of the actor."""
    if not is_dataclass(kind.options):
        settings = {}
    elif unknown := [name for name in custom.options if name not in {field.name for field in fields(kind.options)}]:
        known = ", ".join(field.name for field in fields(kind.options)) or "none"
        raise ConfigError(f"{SECTION}.options", ", ".join(unknown), f"allowed: the fields of {kind.options.__name__}: {known}")
    try:
        return options_of(kind, {**settings, **custom.options})
    except (TypeError, ValueError) as error:
        raise ConfigError(f"{SECTION}.options", custom.options, str(error)) from error


def _settings(actor: Actor) -> dict[str, Any]:
    """The options of every loss by their names."""
    chosen = actor.policy_loss
    return {
        "clip_ratio_low": actor.clip_low,
        "clip_ratio_high": actor.clip_high,
        "clip_ratio_c": actor.clip_ratio_c,
        "tau_pos": actor.tau_pos,
        "tau_neg": actor.tau_neg,
        "clip_cov_ratio": chosen.clip_cov_ratio,
        "clip_cov_lb": chosen.clip_cov_lb,
        "clip_cov_ub": chosen.clip_cov_ub,
        "kl_cov_ratio": chosen.kl_cov_ratio,
        "ppo_kl_coef": chosen.ppo_kl_coef,
        "dro_beta": chosen.dro_beta,
        "epsilon": chosen.epsilon,
        "epsilon_high": chosen.epsilon_high,
        "delta": chosen.delta,
        "importance_sampling_level": chosen.importance_sampling_level,
        "vespo_k_pos": chosen.vespo_k_pos,
        "vespo_lambda_pos": chosen.vespo_lambda_pos,
        "vespo_k_neg": chosen.vespo_k_neg,
        "vespo_lambda_neg": chosen.vespo_lambda_neg,
        "rollout_correction": _bypassed(chosen.rollout_correction),
    }


def _bypassed(given: BypassCorrection) -> RolloutCorrectionOptions:
    return RolloutCorrectionOptions(
        rollout_is=given.rollout_is,
        rollout_is_threshold=given.threshold,
        rollout_is_batch_normalize=given.normalize,
        rollout_rs=given.rollout_rs,
        rollout_rs_threshold=given.rollout_rs_threshold,
        loss_type=given.loss,
        rejected_in_denominator=given.keeps_denominator,
    )
