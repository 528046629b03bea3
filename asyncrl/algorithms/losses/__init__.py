"""Policy losses, one a file, by the names of ``actor.policy_loss.loss_mode``; the last three are TRL's."""

from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from typing import Any

from asyncrl.algorithms.losses.bypass_mode import BypassOptions, bypass_mode, bypass_needs_preparation, prepare_bypass
from asyncrl.algorithms.losses.cispo import CispoOptions, cispo
from asyncrl.algorithms.losses.clip_cov import ClipCovOptions, clip_cov, prepare_clip_cov
from asyncrl.algorithms.losses.dppo import DppoOptions
from asyncrl.algorithms.losses.dppo_kl import dppo_kl
from asyncrl.algorithms.losses.dppo_tv import dppo_tv
from asyncrl.algorithms.losses.dro import DroOptions, dro
from asyncrl.algorithms.losses.geo_mean import GeoMeanOptions, geo_mean
from asyncrl.algorithms.losses.gpg import GpgOptions, gpg
from asyncrl.algorithms.losses.grpo import GrpoOptions, grpo
from asyncrl.algorithms.losses.gspo import GspoOptions, gspo
from asyncrl.algorithms.losses.kl_cov import KlCovOptions, kl_cov, prepare_kl_cov
from asyncrl.algorithms.losses.luspo import LuspoOptions, luspo
from asyncrl.algorithms.losses.policy_loss import (
    AnyPolicyLossKind,
    PolicyLoss,
    PolicyLossFunction,
    PolicyLossKind,
    PolicyRows,
    Prepared,
    as_policy_loss,
)
from asyncrl.algorithms.losses.sapo import SapoOptions, sapo
from asyncrl.algorithms.losses.vanilla import VanillaOptions, vanilla
from asyncrl.algorithms.losses.vespo import VespoOptions, vespo

__all__ = [
    "POLICY_LOSSES",
    "AnyPolicyLossKind",
    "PolicyLoss",
    "PolicyLossFunction",
    "PolicyLossKind",
    "PolicyRows",
    "Prepared",
    "as_policy_loss",
    "loss_options",
    "options_of",
]

POLICY_LOSSES: dict[str, AnyPolicyLossKind] = {
    "vanilla": PolicyLossKind(vanilla, VanillaOptions),
    "dppo_tv": PolicyLossKind(dppo_tv, DppoOptions),
    "dppo_kl": PolicyLossKind(dppo_kl, DppoOptions),
    "gspo": PolicyLossKind(gspo, GspoOptions),
    "sapo": PolicyLossKind(sapo, SapoOptions, loss_agg_mode="seq-mean-token-mean"),
    "gpg": PolicyLossKind(gpg, GpgOptions),
    "clip_cov": PolicyLossKind(clip_cov, ClipCovOptions, prepare=prepare_clip_cov),
    "kl_cov": PolicyLossKind(kl_cov, KlCovOptions, prepare=prepare_kl_cov),
    "geo_mean": PolicyLossKind(geo_mean, GeoMeanOptions, loss_agg_mode="seq-mean-token-mean"),
    "dro": PolicyLossKind(dro, DroOptions),
    "cispo": PolicyLossKind(cispo, CispoOptions),
    "bypass_mode": PolicyLossKind(bypass_mode, BypassOptions, prepare=prepare_bypass, prepares_if=bypass_needs_preparation),
    "grpo": PolicyLossKind(grpo, GrpoOptions),
    "luspo": PolicyLossKind(luspo, LuspoOptions, loss_agg_mode="seq-mean-token-sum"),
    "vespo": PolicyLossKind(vespo, VespoOptions),
}


def loss_options(name: str, settings: Mapping[str, Any]) -> Any:
    """The options of a loss out of settings under verl's names; settings of other losses are left alone.

    A setting that is missing takes its default. Raises ValueError for one without a default, or with a value that the loss
    refuses.
    """
    try:
        return options_of(POLICY_LOSSES[name], settings)
    except TypeError as error:
        raise ValueError(f"policy loss {name!r}: {error}") from None


def options_of(kind: AnyPolicyLossKind, settings: Mapping[str, Any]) -> Any:
    """The options of any kind: the settings that its options class has fields for, or without one all of them as a dict.

    Raises TypeError for a setting that is missing and has no default, and what the class raises for a bad value.
    """
    if not is_dataclass(kind.options):
        return kind.options(settings)
    wanted = {field.name: settings[field.name] for field in fields(kind.options) if settings.get(field.name) is not None}
    return kind.options(**wanted)
