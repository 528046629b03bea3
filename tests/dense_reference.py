"""A step in plain torch: one process, padded, no FSDP, nothing of asyncrl. A second method to hold the trainer against.

A row is a dict: prompt_ids, response_ids, response_mask, score, uid, session, index and, where known or looked at, old_log_probs,
baseline, components. Settings: adv_estimator ("grpo" unless given) with what ``tests.dense_estimators`` takes, clip_low,
clip_high, clip_c, kl_loss_coef, entropy_coeff, temperature, lr, optimizer ("AdamW" | "SGD"), weight_decay, betas, clip_grad, kl_in_reward
(beta, 0 = off), kl_penalty ("kl" | "low_var_kl"), mini_batches (row numbers of each optimizer step, epochs unrolled).
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from tests.dense_critic import DenseCritic, dense_critic_step, dense_values
from tests.dense_estimators import ESTIMATORS, as_lists, dense_returns, token_rewards

Row = dict[str, Any]
PLAIN: Row = {"adv_estimator": "grpo", "gamma": 1.0, "lam": 1.0, "norm_by_std": True, "components": {}}


def distributions(model: Any, rows: Sequence[Row], temperature: float) -> tuple[list[Tensor], list[Tensor]]:
    """Log-probs of the whole vocabulary at each response token of each row, from one right-padded forward; and the tokens."""
    ids = [torch.tensor(row["prompt_ids"] + row["response_ids"]) for row in rows]
    tokens, attention = pad_sequence(ids, batch_first=True), pad_sequence([torch.ones_like(one) for one in ids], batch_first=True)
    logits = model(input_ids=tokens, attention_mask=attention).logits / temperature
    starts = [len(row["prompt_ids"]) - 1 for row in rows]
    parts = [out[at : len(one) - 1].log_softmax(-1) for out, at, one in zip(logits, starts, ids, strict=True)]
    return parts, [one[len(one) - len(part) :] for part, one in zip(parts, ids, strict=True)]


def response_tokens(model: Any, rows: Sequence[Row], temperature: float) -> tuple[list[Tensor], list[Tensor]]:
    """Log-probs and entropies of the response tokens of each row."""
    parts, tokens = distributions(model, rows, temperature)
    chosen = [part[torch.arange(len(part)), one] for part, one in zip(parts, tokens, strict=True)]
    return chosen, [-(part.exp() * part).sum(-1) for part in parts]


def squares(model: Any, rows: Sequence[Row], temperature: float) -> list[list[float]]:
    """The sum of the squared probabilities at each response token."""
    return [part.exp().square().sum(-1).tolist() for part in distributions(model, rows, temperature)[0]]


def k3(log_probs: Tensor, reference: Tensor) -> Tensor:
    return torch.expm1(reference - log_probs) - (reference - log_probs)


def estimates(model: Any, critic: DenseCritic | None, rows: Sequence[Row], settings: Row, old: list[Tensor], ref: list[Tensor]) -> Row:
    """Advantages and returns, and what they were made of, as lists per row."""
    estimate = k3 if settings.get("kl_penalty") == "low_var_kl" else torch.sub
    beta = settings.get("kl_in_reward", 0.0)
    rewards = [token_rewards(row, (beta * estimate(o, r)).tolist()) for row, o, r in zip(rows, old, ref, strict=True)]
    values = [[0.0] * len(o) for o in old] if critic is None else dense_values(critic, rows)
    with torch.no_grad():
        made = {"rewards": rewards, "values": values, "sum_pi_squared": squares(model, rows, settings["temperature"])}
    told = [{**row, **{name: part[n] for name, part in made.items()}, "old_log_probs": old[n].tolist()} for n, row in enumerate(rows)]
    name = settings["adv_estimator"]
    advantages = ESTIMATORS[name](told, settings)
    return made | {"advantages": as_lists(rows, advantages), "returns": as_lists(rows, dense_returns(name, told, settings, advantages))}


def dense_step(
    model: Any, reference: Any, rows: Sequence[Row], settings: dict[str, Any], optimizer: Any = None, critic: DenseCritic | None = None
) -> dict[str, Any]:
    """Train ``model`` and ``critic`` in place.

    Returns old_log_probs, ref_log_probs and what ``estimates`` gives (lists per row), updates and critic_updates (metrics), optimizer.
    """
    settings = PLAIN | settings
    with torch.no_grad():
        computed = response_tokens(model, rows, settings["temperature"])[0]
        ref = response_tokens(reference, rows, settings["temperature"])[0]
    given = [row.get("old_log_probs") for row in rows]
    old = [now if known is None else torch.tensor(known) for known, now in zip(given, computed, strict=True)]
    masks = [torch.tensor(row["response_mask"], dtype=torch.bool) for row in rows]
    made = estimates(model, critic, rows, settings, old, ref)
    advantages = made["advantages"]
    learned = [] if critic is None else dense_critic_step(critic, rows, made["values"], made["returns"], settings)
    if optimizer is None and settings["optimizer"] == "AdamW":
        optimizer = torch.optim.AdamW(model.parameters(), settings["lr"], settings["betas"], weight_decay=settings["weight_decay"])
    elif optimizer is None:
        optimizer = torch.optim.SGD(model.parameters(), settings["lr"], weight_decay=settings["weight_decay"])
    updates = []
    for batch in settings["mini_batches"]:
        new, entropies = response_tokens(model, [rows[i] for i in batch], settings["temperature"])
        # From here on flat lists of the trainable tokens, without padding or mask.
        lp, entropy = (torch.cat([part[n][masks[i]] for n, i in enumerate(batch)]) for part in (new, entropies))
        lp_old, lp_ref, a = (torch.cat([torch.as_tensor(part[i])[masks[i]] for i in batch]) for part in (old, ref, advantages))
        ratio, floor, roof = (lp - lp_old).exp(), 1 - settings["clip_low"], 1 + settings["clip_high"]
        bounded = torch.where(a < 0, ratio.clamp(floor, settings["clip_c"]), ratio.clamp(max=roof))
        parts = {"pg_loss": (-a * bounded).mean(), "entropy": entropy.mean(), "kl_loss": k3(lp, lp_ref).mean()}
        loss = parts["pg_loss"] - settings["entropy_coeff"] * parts["entropy"] + settings["kl_loss_coef"] * parts["kl_loss"]
        clipped = ((a > 0) & (ratio > roof)) | ((a < 0) & (ratio < floor))
        rates = {"pg_clipfrac": clipped.float().mean(), "ppo_kl": (lp_old - lp).mean()}
        rates["pg_clipfrac_lower"] = ((a < 0) & (ratio > settings["clip_c"])).float().mean()
        optimizer.zero_grad()
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), settings["clip_grad"])
        optimizer.step()
        updates.append({name: value.item() for name, value in {**parts, **rates, "loss": loss, "grad_norm": norm}.items()})
    found = {"old_log_probs": [o.tolist() for o in old], "ref_log_probs": [r.tolist() for r in ref], **made}
    return {**found, "updates": updates, "critic_updates": learned, "optimizer": optimizer}
