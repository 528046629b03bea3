"""Policy losses, one a file, by the names of ``actor.policy_loss.loss_mode``."""

from asyncrl.algorithms.losses.policy_loss import PolicyLossFunction
from asyncrl.algorithms.losses.vanilla import vanilla

POLICY_LOSSES: dict[str, PolicyLossFunction] = {
    "vanilla": vanilla,
}
