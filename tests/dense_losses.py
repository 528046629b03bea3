"""Every policy loss, aggregation and KL in plain torch, from the formulas of the papers: nothing of asyncrl, nothing padded.

A mini-batch is a list of ``Tokens``, a row each, its trainable tokens alone. A second method to hold the trainer against.
"""

import hashlib
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from tests.dense_correction import corrected

Settings = dict[str, Any]
PLAIN: Settings = {
    "loss_mode": "vanilla", "loss_agg_mode": "token-mean", "loss_scale": 4.0, "kl_loss_type": "low_var_kl", "seed": 1, "step": 1,
    "tau_pos": 1.0, "tau_neg": 1.05, "epsilon": 0.2, "epsilon_high": 0.2, "delta": None, "level": "token",
    "loss_type": "ppo_clip", "rejected_in_denominator": False,
}  # fmt: skip
OWN_AGGREGATION = {"sapo": "seq-mean-token-mean", "geo_mean": "seq-mean-token-mean", "luspo": "seq-mean-token-sum"}


@dataclass
class Tokens:
    """The trainable tokens of a row: log-probs of now, of before and of the reference, entropy, advantages, weights."""

    key: str
    columns: list[int]
    now: Tensor
    old: Tensor
    ref: Tensor
    entropy: Tensor
    advantages: Tensor
    weights: Tensor

    def only(self, kept: Tensor) -> "Tokens":
        parts = (part[kept] for part in (self.now, self.old, self.ref, self.entropy, self.advantages, self.weights))
        return Tokens(self.key, [column for column, one in zip(self.columns, kept.tolist(), strict=True) if one], *parts)

    @property
    def log_ratio(self) -> Tensor:
        return self.now - self.old


def draw(settings: Settings, key: str, column: int) -> int:
    """SplitMix64 after a hash of seed, step, pass and key, as a signed number."""
    spot = f"{settings['seed']}:{settings['step']}:{settings['pass']}:{key}"
    state = int.from_bytes(hashlib.blake2b(spot.encode(), digest_size=8).digest(), "little")
    word = (state + (column + 1) * 0x9E3779B97F4A7C15) % 2**64
    word = (word ^ word >> 30) * 0xBF58476D1CE4E5B9 % 2**64
    word = (word ^ word >> 27) * 0x94D049BB133111EB % 2**64
    word ^= word >> 31
    return word - 2**64 if word >= 2**63 else word


def clipped(row: Tokens, settings: Settings, ratio: Tensor) -> Tensor:
    """PPO's: the worse of the ratio and the ratio in its bounds."""
    bounded = ratio.clamp(1 - settings["clip_low"], 1 + settings["clip_high"])
    return -torch.minimum(row.advantages * ratio, row.advantages * bounded)


def vanilla(row: Tokens, settings: Settings) -> Tensor:
    loss = clipped(row, settings, row.log_ratio.exp())
    return torch.where(row.advantages < 0, torch.minimum(loss, -row.advantages * settings["clip_c"]), loss)


def gspo(row: Tokens, settings: Settings) -> Tensor:
    return clipped(row, settings, (row.log_ratio.mean().detach() + row.now - row.now.detach()).exp())


def sapo(row: Tokens, settings: Settings) -> Tensor:
    tau = torch.where(row.advantages > 0, settings["tau_pos"], settings["tau_neg"])
    return -row.advantages * 4 / tau / (1 + torch.exp(-tau * (row.log_ratio.exp() - 1)))


def gpg(row: Tokens, settings: Settings) -> Tensor:
    return -row.advantages * row.now


def dppo(keeps: Callable[[Tensor, Tensor, Tensor, Settings], Tensor]) -> Callable[[Tokens, Settings], Tensor]:
    def loss(row: Tokens, settings: Settings) -> Tensor:
        new, old = row.now.detach().exp(), row.old.exp()
        weight = row.log_ratio.detach().exp().clamp(max=settings["clip_c"])
        return -row.advantages * weight * row.now * keeps(new, old, row.advantages > 0, settings)

    return loss


def inside_tv(new: Tensor, old: Tensor, up: Tensor, settings: Settings) -> Tensor:
    return torch.where(up, new - old <= settings["clip_high"], old - new <= settings["clip_low"])


def inside_kl(new: Tensor, old: Tensor, up: Tensor, settings: Settings) -> Tensor:
    divergence = old * (old / new).log() + (1 - old) * ((1 - old) / (1 - new)).log()
    near = torch.where(up, divergence <= settings["clip_high"], divergence <= settings["clip_low"])
    return near | torch.where(up, new <= old, new >= old)


def geo_mean(row: Tokens, settings: Settings) -> Tensor:
    up = row.log_ratio.clamp(max=settings["clip_high"])
    down = row.log_ratio.clamp(min=-settings["clip_low"])
    chosen = torch.where(row.advantages > 0, up, torch.where(row.advantages < 0, down, torch.zeros_like(up)))
    weight = math.exp(row.weights.log().mean().item())
    return (-row.advantages.mean() * chosen.mean().exp() * weight).expand_as(row.now)


def cispo(row: Tokens, settings: Settings) -> Tensor:
    weight = row.log_ratio.detach().exp().clamp(1 - settings["clip_low"], 1 + settings["clip_high"])
    return -weight * row.advantages * row.now


def dro(row: Tokens, settings: Settings) -> Tensor:
    pull: Tensor = settings["dro_beta"] / 2 * row.log_ratio**2
    return pull - row.advantages * row.now


def trl_grpo(row: Tokens, settings: Settings) -> Tensor:
    mean = row.log_ratio.mean().expand_as(row.now)
    ratio = (mean if settings["level"] == "sequence" else row.log_ratio).exp()
    bounded = ratio.clamp(1 - settings["epsilon"], 1 + settings["epsilon_high"])
    capped = ratio if settings["delta"] is None else ratio.clamp(max=settings["delta"])
    return -torch.minimum(capped * row.advantages, bounded * row.advantages)


def vespo(row: Tokens, settings: Settings) -> Tensor:
    weight = math.exp(max(row.log_ratio.sum().item() + row.weights.log().sum().item(), math.log(1e-8)))
    phi = {sign: weight ** settings[f"k_{sign}"] * math.exp(settings[f"lambda_{sign}"] * (1 - weight)) for sign in ("pos", "neg")}
    return -row.advantages * torch.where(row.advantages >= 0, phi["pos"], phi["neg"]) * row.now


def reinforce(row: Tokens, settings: Settings) -> Tensor:
    return -row.advantages * row.now


ROW_LOSSES: dict[str, Callable[[Tokens, Settings], Tensor]] = {
    "vanilla": vanilla,
    "dppo_tv": dppo(inside_tv),
    "dppo_kl": dppo(inside_kl),
    "gspo": gspo,
    "sapo": sapo,
    "gpg": gpg,
    "geo_mean": geo_mean,
    "dro": dro,
    "cispo": cispo,
    "grpo": trl_grpo,
    "luspo": lambda row, settings: trl_grpo(row, settings | {"level": "sequence"}),
    "vespo": vespo,
}
WEIGHED = ("geo_mean", "vespo")
"""Importance weights are inside these."""


def covariances(rows: Sequence[Tokens]) -> list[tuple[int, int, float]]:
    """(row, place, covariance) of every token."""
    advantages, now = torch.cat([row.advantages for row in rows]), torch.cat([row.now.detach() for row in rows])
    found = ((advantages - advantages.mean()) * (now - now.mean())).tolist()
    places = [(number, place) for number, row in enumerate(rows) for place in range(len(row.now))]
    return [(*place, value) for place, value in zip(places, found, strict=True)]


def kl_cov(rows: Sequence[Tokens], settings: Settings) -> list[Tensor]:
    losses = [-row.advantages * row.log_ratio.exp() for row in rows]
    found = covariances(rows)
    for number, place, _ in sorted(found, key=lambda each: -each[2])[: max(1, int(settings["kl_cov_ratio"] * len(found)))]:
        extra = torch.zeros_like(losses[number])
        extra[place] = settings["ppo_kl_coef"]
        losses[number] = losses[number] + extra * rows[number].log_ratio.abs()
    return losses


def clip_cov(rows: Sequence[Tokens], settings: Settings) -> list[Tensor]:
    losses, eligible, found = [clipped(row, settings, row.log_ratio.exp()) for row in rows], [], covariances(rows)
    for number, place, covariance in found:
        row = rows[number]
        free = -row.advantages[place] * row.log_ratio[place].exp()
        if settings["clip_cov_lb"] < covariance < settings["clip_cov_ub"] and losses[number][place] <= free:
            eligible.append((draw(settings, row.key, row.columns[place]), number, place))
    chosen = sorted(eligible)[: max(1, int(settings["clip_cov_ratio"] * len(found)))]
    keep = [torch.ones_like(loss) for loss in losses]
    for _, number, place in chosen:
        keep[number][place] = 0.0
    return [loss * one for loss, one in zip(losses, keep, strict=True)]


def bypassed(rows: Sequence[Tokens], settings: Settings) -> list[Tokens]:
    """The rows as the correction between the engine and the policy of now leaves them, with its weights."""
    weights, kept, _ = corrected([row.now.detach() for row in rows], [row.old for row in rows], settings)
    if settings["loss_type"] == "ppo_clip":
        weights = [torch.ones_like(each) for each in weights]
    weighed = [Tokens(**{**vars(row), "weights": weight}) for row, weight in zip(rows, weights, strict=True)]
    return [row.only(mask) for row, mask in zip(weighed, kept, strict=True)]


def token_losses(rows: Sequence[Tokens], settings: Settings) -> list[Tensor]:
    name = settings["loss_mode"]
    if name in ("kl_cov", "clip_cov"):
        losses = (kl_cov if name == "kl_cov" else clip_cov)(rows, settings)
    elif name == "bypass_mode":
        losses = [(vanilla if settings["loss_type"] == "ppo_clip" else reinforce)(row, settings) for row in rows]
    else:
        losses = [ROW_LOSSES[name](row, settings) for row in rows]
    return losses if name in WEIGHED else [loss * row.weights for loss, row in zip(losses, rows, strict=True)]


def aggregated(losses: Sequence[Tensor], mode: str, tokens: int, rows: int, scale: float) -> Tensor:
    """One number out of those of all tokens; ``tokens`` and ``rows`` are what is counted."""
    if mode == "token-mean":
        return torch.cat(list(losses)).sum() / tokens
    if mode == "token-sum":
        return torch.cat(list(losses)).sum()
    if mode == "seq-mean-token-mean":
        return torch.stack([loss.mean() for loss in losses if len(loss)]).sum() / rows
    total = torch.stack([loss.sum() for loss in losses]).sum() / rows
    return total / scale if mode == "seq-mean-token-sum-norm" else total


def kl(now: Tensor, ref: Tensor, name: str) -> Tensor:
    """Schulman's estimators; with + the value of one and the gradient of k2."""
    apart = now - ref
    base = {"kl": "k1", "mse": "k2", "low_var_kl": "k3"}.get(name.rstrip("+"), name.rstrip("+"))
    value = {"k1": apart, "abs": apart.abs(), "k2": apart**2 / 2, "k3": torch.expm1(-apart) + apart}[base]
    if not name.endswith("+"):
        return value
    return value.detach() + apart**2 / 2 - (apart**2 / 2).detach()


def objective(rows: Sequence[Tokens], counted: Sequence[int], settings: Settings) -> dict[str, Tensor]:
    """The loss of a mini-batch and its terms. ``counted``: tokens of each row before any rejection."""
    if settings["loss_mode"] == "bypass_mode":
        rows = bypassed(rows, settings)
    lengths = list(counted) if settings["rejected_in_denominator"] else [len(row.now) for row in rows]
    size = (sum(lengths), sum(length > 0 for length in lengths), settings["loss_scale"])
    own = str(settings.get("pg_agg_mode") or OWN_AGGREGATION.get(settings["loss_mode"], settings["loss_agg_mode"]))
    terms = {
        "pg_loss": aggregated(token_losses(rows, settings), own, *size),
        "entropy_loss": aggregated([row.entropy for row in rows], settings["loss_agg_mode"], *size),
        "kl_loss": aggregated([kl(row.now, row.ref, settings["kl_loss_type"]) for row in rows], settings["loss_agg_mode"], *size),
        "entropy": torch.cat([row.entropy for row in rows]).mean(),
    }
    loss = terms["pg_loss"] - settings["entropy_coeff"] * terms["entropy_loss"] + settings["kl_loss_coef"] * terms["kl_loss"]
    return terms | {"loss": loss} | rates(rows, settings)


def rates(rows: Sequence[Tokens], settings: Settings) -> dict[str, Tensor]:
    """How far the policy moved, and for the plain loss how often its clips bound."""
    apart, a = torch.cat([row.log_ratio for row in rows]).detach(), torch.cat([row.advantages for row in rows])
    if settings["loss_mode"] in ("gpg", "kl_cov"):
        return {}
    found = {"ppo_kl": -apart.mean()}
    if settings["loss_mode"] == "vanilla":
        high, low, far = (
            apart.exp() > 1 + settings["clip_high"], apart.exp() < 1 - settings["clip_low"], apart.exp() > settings["clip_c"]
        )  # fmt: skip
        found["pg_clipfrac"] = (((a > 0) & high) | ((a < 0) & low)).float().mean()
        found["pg_clipfrac_lower"] = ((a < 0) & far).float().mean()
    return found
