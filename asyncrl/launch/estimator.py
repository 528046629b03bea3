"""The advantage estimator of a run: one by its name, or the user's."""

from asyncrl.algorithms.advantages import ESTIMATORS, Estimator, Needs, as_estimator
from asyncrl.config.places import resolve_path
from asyncrl.config.schema import Config
from asyncrl.errors import ConfigError
from asyncrl.rewards.load import load_object

SECTION = "algorithm.custom_adv_estimator"


def open_estimator(config: Config) -> Estimator:
    """The estimator of ``algorithm``.

    Raises ConfigError for a user's that cannot be found, that is of another kind or signature, or whose needs the other
    options do not meet.
    """
    custom = config.algorithm.custom_adv_estimator
    if custom.path is None:
        return ESTIMATORS[config.algorithm.adv_estimator]
    try:
        estimator = as_estimator(load_object(resolve_path(custom.path), custom.name, SECTION))
    except TypeError as error:
        raise ConfigError(f"{SECTION}.name", custom.name, str(error)) from error
    _check_needs(config, estimator.needs)
    return estimator


def _check_needs(config: Config, needs: Needs) -> None:
    """What the names of the known estimators are checked for before torch is there."""
    name = config.algorithm.estimator
    if needs.groups and config.actor_rollout_ref.rollout.n == 1:
        raise ConfigError("actor_rollout_ref.rollout.n", 1, f"allowed: at least 2, as {name} compares the sessions of a prompt")
    if needs.values and not config.need_critic:
        raise ConfigError("critic.enable", config.critic.enable, f"allowed: true, as {name} needs a critic's values")
    if needs.sum_pi_squared and config.algorithm.rollout_correction.bypass_mode:
        allowed = f"allowed: false, as {name} needs what the pass for old_log_probs gives"
        raise ConfigError("algorithm.rollout_correction.bypass_mode", True, allowed)
